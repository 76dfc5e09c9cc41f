"""softmax(Q K^T / sqrt(D)) V with the fastest kernel for the device, dtype and layout of the rows.

    B batch   S sequence   T tokens of all rows   N heads   D head
    P tokens whose results are asked for, of each row or, unpadded, of all rows

Rows come padded, [B, S], or concatenated without padding, [T]. On CUDA each layout has a kernel.
A packed row holds pieces of several documents, and tokens attend to their own piece only.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from clozeline.model.cpu_kernels import scaled_dot_product_attention


class Packing(NamedTuple):
    """Where each sequence (a row, or a piece of a packed row) of an unpadded batch begins."""

    position_ids: Tensor  # int64 [T], the position of each token in its sequence
    cu_seqlens: Tensor  # int32 [sequences + 1], where each sequence begins, and T
    max_seqlen: int  # tokens of the longest row, or more
    row_starts: Tensor | None = None  # int32 [B + 1], where each packed row begins, and T


#: What separates tokens from padding. Padded rows: a mask, bool [B, S], False at padding, or None
#: where no row has padding, which is faster. Packed rows: the number of each token's piece, int64
#: [B, S], from 1 on, and 0 at padding. Unpadded rows: a `Packing`.
Rows = Tensor | Packing | None


def position_ids(rows: Rows) -> Tensor | None:
    """The position of each token in its sequence, int64 [B, S] or [T]; None: 0 to S - 1 in all.

    Positions start again with each piece of a packed row.
    """
    if isinstance(rows, Packing):
        return rows.position_ids
    if rows is None or rows.dtype == torch.bool:
        return None
    slot = torch.arange(rows.shape[1], device=rows.device)
    is_first = rows.diff(dim=1, prepend=rows.new_full((len(rows), 1), -1)) != 0
    return slot - (slot * is_first).cummax(1).values


def states_at(states: Tensor, positions: Tensor | None) -> Tensor:
    """States of the tokens at `positions`: [B, S, ...] at [B, P], [T, ...] at [P]; None: all."""
    if positions is None:
        return states
    if positions.ndim == 1:
        return states.index_select(0, positions)
    places = positions.view(*positions.shape, *[1] * (states.ndim - 2))
    return states.gather(1, places.expand(-1, -1, *states.shape[2:]))


def attend(
    qkv: Tensor,
    rows: Rows,
    *,
    dropout_prob: float,
    window: int | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Attention of each token over its row, [..., N, D], from `qkv` [..., 3, N, D].

    Both begin with [B, S], for unpadded rows with [T]. With a `window` a token attends to itself
    and to that many tokens on either side. With `positions`, int64 [B, P] or [P], the attention of
    the tokens there alone, [B, P, N, D] or [P, N, D]. Raises ValueError for dropout on unpadded
    rows in half precision on CUDA: no kernel supports it.
    """
    if not isinstance(rows, Packing):
        return _attend_padded(qkv, rows, dropout_prob, window, positions)
    has_kernel = qkv.is_cuda and qkv.dtype != torch.float32
    attend_all = _attend_unpadded if has_kernel else _attend_repadded
    return states_at(attend_all(qkv, rows, dropout_prob, window), positions)


def _attend_padded(
    qkv: Tensor,
    rows: Tensor | None,
    dropout_prob: float,
    window: int | None,
    positions: Tensor | None = None,
) -> Tensor:
    query, key, value = qkv.unbind(2)  # each [B, S, N, D]
    parts = states_at(query, positions), key, value
    query, key, value = (part.transpose(1, 2) for part in parts)  # [B, N, S or P, D]
    mask = _mask(rows, qkv, window, positions)
    attended = scaled_dot_product_attention(query, key, value, mask, dropout_prob)
    return attended.transpose(1, 2)  # [B, S or P, N, D]


def _mask(
    rows: Tensor | None, qkv: Tensor, window: int | None, positions: Tensor | None
) -> Tensor | None:
    """Which keys a query attends to, bool [B or 1, 1, P, S], or [B, 1, 1, S]; None: all of them."""
    mask, length = None if rows is None else rows[:, None, None, :], qkv.shape[1]
    if rows is not None and rows.dtype != torch.bool:  # padding attends to padding
        pieces = rows if positions is None else rows.gather(1, positions)  # of the queries
        mask = rows[:, None, None, :] == pieces[:, None, :, None]
    # An exported graph serves every length, even if the example's length fits in the window.
    if window is None or (length <= window + 1 and not torch.compiler.is_exporting()):
        return mask
    keys = torch.arange(length, device=qkv.device)
    queries = keys[None] if positions is None else positions
    distance = (queries[:, None, :, None] - keys).abs()  # [B or 1, 1, P, S]
    near = distance <= window
    # Padding far from all tokens attends to itself: a softmax over nothing is NaN.
    return near if mask is None else (near & mask) | (distance == 0)


def _attend_repadded(
    qkv: Tensor, packing: Packing, dropout_prob: float, window: int | None
) -> Tensor:
    """Pads the rows for this operation alone, where no kernel takes unpadded ones."""
    starts = packing.cu_seqlens if packing.row_starts is None else packing.row_starts
    rows, longest, lengths = len(starts) - 1, packing.max_seqlen, starts.diff()
    padding = torch.arange(rows, device=qkv.device) * longest - starts[:-1]  # before each row
    slots = padding.repeat_interleave(lengths, output_size=len(qkv))
    slots = slots + torch.arange(len(qkv), device=qkv.device)  # [T]
    padded = qkv.new_zeros(rows * longest, *qkv.shape[1:]).index_copy(0, slots, qkv)
    mask = torch.arange(longest, device=qkv.device) < lengths[:, None]  # [B, S]
    if packing.row_starts is not None:
        piece = (packing.position_ids == 0).cumsum(0)
        mask = piece.new_zeros(mask.numel()).index_copy(0, slots, piece).view_as(mask)
    attended = _attend_padded(padded.unflatten(0, (rows, longest)), mask, dropout_prob, window)
    return attended.flatten(0, 1).index_select(0, slots)


def _attend_unpadded(
    qkv: Tensor, packing: Packing, dropout_prob: float, window: int | None
) -> Tensor:
    if dropout_prob:
        raise ValueError(
            f"attention_probs_dropout_prob is {dropout_prob}, but attention over unpadded rows "
            "has no dropout on CUDA; set it to 0, or train on padded rows."
        )
    from torch.nn.attention.varlen import varlen_attn  # imports the compiler, which takes seconds

    starts, longest = packing.cu_seqlens, packing.max_seqlen
    query, key, value = qkv.unbind(1)  # each [T, N, D]
    size = (-1, -1) if window is None else (window, window)  # on the left, on the right; -1: all
    attended = varlen_attn(query, key, value, starts, starts, longest, longest, window_size=size)
    assert isinstance(attended, Tensor)  # a tuple only with return_aux
    return attended
