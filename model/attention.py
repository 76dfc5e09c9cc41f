"""softmax(Q K^T / sqrt(D)) V on the road that is fastest for a device, a type and a form of rows.

    B batch   S sequence   T tokens of all rows   N heads   D head

Rows come padded, [B, S], or one after another without padding, [T]. On CUDA each form has its own
kernel. On CPU the fused kernel of torch is made for inference: its backward pass in bfloat16 takes
several times as long as plain products, which run on matrix units.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cpu_kernels import dropout


class Packing(NamedTuple):
    """Where the rows of an unpadded batch are."""

    position_ids: Tensor  # int64 [T], the place of each token in its row
    cu_seqlens: Tensor  # int32 [B + 1], where each row begins, and T
    max_seqlen: int  # tokens of the longest row, or more


def attend(qkv: Tensor, rows: Tensor | Packing | None, *, dropout_prob: float) -> Tensor:
    """What every token gathers from its row, [..., N, D], of `qkv` [..., 3, N, D].

    Of padded rows, [B, S, ...], `rows` is a mask, bool [B, S], False at what nothing is gathered
    from; None: they are all full, which is faster. Of unpadded rows, [T, ...], it is a `Packing`.
    Raises ValueError for dropout of unpadded rows in half precision on CUDA: no kernel has it.
    """
    if not isinstance(rows, Packing):
        return _attend_padded(qkv, rows, dropout_prob)
    if qkv.is_cuda and qkv.dtype != torch.float32:
        return _attend_unpadded(qkv, rows, dropout_prob)
    return _attend_repadded(qkv, rows, dropout_prob)


def _attend_padded(qkv: Tensor, mask: Tensor | None, dropout_prob: float) -> Tensor:
    query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, N, S, D]
    mask = None if mask is None else mask[:, None, None, :]  # [B, 1, 1, S]
    if _is_plain_faster(qkv, dropout_prob):
        gathered = _attend_plainly(query, key, value, mask, dropout_prob)
    else:
        gathered = F.scaled_dot_product_attention(query, key, value, mask, dropout_prob)
    return gathered.transpose(1, 2)  # [B, S, N, D]


def _attend_repadded(qkv: Tensor, packing: Packing, dropout_prob: float) -> Tensor:
    """Where no kernel takes unpadded rows, they are padded for this one operation."""
    rows, longest = len(packing.cu_seqlens) - 1, packing.max_seqlen
    lengths = packing.cu_seqlens.diff()
    first = torch.arange(rows, device=qkv.device) * longest
    slots = packing.position_ids + first.repeat_interleave(lengths, output_size=len(qkv))  # [T]
    padded = qkv.new_zeros(rows * longest, *qkv.shape[1:]).index_copy(0, slots, qkv)
    mask = torch.arange(longest, device=qkv.device) < lengths[:, None]  # [B, S]
    gathered = _attend_padded(padded.unflatten(0, (rows, longest)), mask, dropout_prob)
    return gathered.flatten(0, 1).index_select(0, slots)


def _attend_unpadded(qkv: Tensor, packing: Packing, dropout_prob: float) -> Tensor:
    if dropout_prob:
        raise ValueError(
            f"attention_probs_dropout_prob is {dropout_prob}, but attention over unpadded rows "
            "has no dropout on CUDA; set it to 0, or train on padded rows."
        )
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler: seconds

    starts, longest = packing.cu_seqlens, packing.max_seqlen
    query, key, value = qkv.unbind(1)  # each [T, N, D]
    gathered = varlen_attn(query, key, value, starts, starts, longest, longest)
    assert isinstance(gathered, Tensor)  # a tuple only where more is asked for
    return gathered


def _is_plain_faster(qkv: Tensor, dropout_prob: float) -> bool:
    """Milliseconds of 128 heads of 128 x 64, forward and backward, on 2 cores with AMX:

    bfloat16 8 against 28, with dropout 13 against 36; float32 without dropout 18 against 16.
    """
    if qkv.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return qkv.dtype == torch.bfloat16 or dropout_prob > 0


def _attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_prob: float
) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # [B, N, S, S]
    if mask is not None:
        scores = scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
    return dropout(scores.softmax(-1), dropout_prob) @ value
