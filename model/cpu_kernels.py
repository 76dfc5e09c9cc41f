"""Operations that are slow or use much memory in torch on CPU, and what replaces them there.

Under `torch.compile` all of them are torch's own, and on other devices all but the cross-entropies,
which save memory there too. The figures in the docstrings are from
`tests/benchmarks/cpu_kernels_speed.py`: processor time of torch's operation divided by ours,
forward and backward, one thread of an AMD EPYC (Zen 5, AVX-512, no AMX), torch 2.13.0, 2026-11-22.
Other numbers of threads were not measured.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Rows of logits whose float32 softmax is in memory at once: 4 MB at 30,528 columns on CPU, which
#: stays in a cache; elsewhere enough rows to keep a GPU busy.
LOGIT_ROWS, GPU_LOGIT_ROWS = 32, 2048


class Dropout(nn.Module):
    """`nn.Dropout` with `dropout` below."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero with probability p, in [0, 1), the rest scaled by 1 / (1 - p); shape and dtype of `x`.

    torch draws a random number for each element, one at a time. Here 16 bits decide on an element,
    so one draw serves four, and p is rounded to a multiple of 2**-16: 2.4 times as fast in float32,
    2.1 times in bfloat16.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)  # a single kernel
    limit = min(round(p * 2**16), 2**16 - 1)
    if limit == 0:
        return x
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = bits.view(torch.int16)[: x.numel()].view(x.shape)
    is_kept = (bits >= limit - 2**15).to(x.dtype)
    return x * is_kept.mul_(2**16 / (2**16 - limit))


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_prob: float
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V, [B, N, P, D], of queries [B, N, P, D], the others [B, N, S, D].

    `mask`, bool [B or 1, 1, P or 1, S], is False at keys that a query does not attend to; each
    query needs at least one True.

    torch's fused kernel for CPU is made for inference. Plain matrix products train faster in
    bfloat16 (4.5 times, with dropout 2.8 times) and in float32 with dropout (1.3 times). In float32
    without dropout there is no difference (1.0), and the fused kernel takes less memory.
    """
    is_here = query.device.type == "cpu" and not torch.compiler.is_compiling()
    is_faster = query.dtype == torch.bfloat16 or dropout_prob > 0
    if not (is_here and is_faster):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_prob)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # [B, N, P, S]
    if mask is not None:
        scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
    return dropout(scores.softmax(-1), dropout_prob) @ value


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropies in nats, float32 [R], of logits [R, W] of any float dtype, labels int64 [R].

    torch makes three float32 tensors of the size of the logits, the largest tensor of most models.
    On CPU this takes a few rows at a time, and only the gradient has that size: 2.5 times less
    memory in float32 and 2.8 in bfloat16, in 1.1 and 0.9 times the time. The compiler fuses torch's
    own, so that no float32 tensor of that size is written.
    """
    if torch.compiler.is_compiling():
        return F.cross_entropy(logits.float(), labels, reduction="none")
    apply: Callable[..., Tensor] = _CrossEntropies.apply
    return apply(logits, labels)


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        parts = _by_rows(logits, labels)
        losses = torch.cat([F.cross_entropy(x.float(), y, reduction="none") for x, y in parts])
        ctx.save_for_backward(logits, labels, losses)
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The softmax minus one at the label, times the gradient of each loss."""
        (weights,), (logits, labels, losses) = gradients, ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for x, out, weight in _by_rows(logits, gradient, weights):
            out.copy_(x.float().softmax(-1).mul_(weight[:, None]))
        at_label = torch.expm1(-losses) * weights  # p - 1 without rounding where p is near 1
        # Not `scatter_`, which makes two copies of the whole gradient on the way.
        rows = torch.arange(len(labels), device=labels.device)
        gradient[rows, labels] = at_label.to(gradient.dtype)
        return gradient, None


def sampled_cross_entropies(logits: Tensor, own: Tensor, columns: Tensor) -> Tensor:
    """Cross-entropies in nats, float32 [R], where the columns are only some of the classes.

    `logits` [R, K] of any float dtype; `own` float32 [R], the logit of each row's label;
    `columns` int64 [R], where the label is among the K, which is then left out there, or -1.
    """
    if torch.compiler.is_compiling():
        is_own = columns[:, None] == torch.arange(logits.shape[1], device=logits.device)
        others = logits.float().masked_fill(is_own, float("-inf")).logsumexp(-1)
        return torch.logaddexp(others, own) - own
    apply: Callable[..., Tensor] = _SampledCrossEntropies.apply
    return apply(logits, own, columns)


class _SampledCrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, own: Tensor, columns: Tensor) -> Tensor:
        losses = torch.cat([_losses_of_rows(*part) for part in _by_rows(logits, own, columns)])
        ctx.save_for_backward(logits, own, columns, losses)
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """The softmax without the label, times the gradient of each loss; and the label's."""
        (weights,), (logits, own, columns, losses) = gradients, ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for x, out, total, weight in _by_rows(logits, gradient, losses + own, weights):
            out.copy_((x.float() - total[:, None]).exp_().mul_(weight[:, None]))
        _set_own(gradient, columns, 0.0)
        return gradient, torch.expm1(-losses) * weights, None


def _losses_of_rows(logits: Tensor, own: Tensor, columns: Tensor) -> Tensor:
    others = logits.to(torch.float32, copy=True)
    _set_own(others, columns, float("-inf"))
    return torch.logaddexp(others.logsumexp(-1), own) - own


def _set_own(rows: Tensor, columns: Tensor, value: float) -> None:
    """Set each row at its column, in place, where it has one. Shapes do not depend on values."""
    at = torch.arange(len(rows), device=rows.device), columns.clamp(min=0)
    rows[at] = torch.where(columns < 0, rows[at], value)


def _by_rows(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of some rows of each tensor at a time."""
    rows = LOGIT_ROWS if logits.device.type == "cpu" else GPU_LOGIT_ROWS
    return zip(*(tensor.split(rows) for tensor in (logits, *others)), strict=True)
