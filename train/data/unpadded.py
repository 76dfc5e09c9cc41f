"""Batches without padding: the tokens of all rows, concatenated.

B examples with T tokens and M masked tokens in all.

    rows                 [CLS] the [MASK] sat [SEP]    [CLS] it [MASK] [SEP]
    input_ids            2 7 4 9 3 2 8 4 3
    position_ids         0 1 2 3 4 0 1 2 3             cu_seqlens      0 5 9
    masked_lm_positions  2 7 (among all tokens)

Packed rows are taken apart: each piece is a sequence of its own, with positions from 0 on.

T and M differ from batch to batch. Before a forward pass `with_dummy_rows` makes them those of full
rows where rows are packed, and so nearly full: compiled code has one graph. Elsewhere it rounds
them up, and compiled code has to allow dynamic shapes. The row offsets are kept on the CPU too, so
that splitting a batch on a GPU does not synchronize with it.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clozeline.pipeline.common.ragged import Offsets, offsets_of, ordinals
from clozeline.pipeline.dataset.schema import NO_PAIR, Examples
from clozeline.train.data.batch import TensorBatch

#: T and M are rounded up to multiples of these before a forward pass: products of whole tiles, and
#: few different shapes for a compiler, for an allocator and for a cache of kernels.
TOKENS, PREDICTIONS = 128, 64
#: A pass over packed rows has room for so many sequences a row, or for 2, 4, 8, ... times as many.
PIECES = 4


@dataclass(frozen=True, kw_only=True)
class UnpaddedBatch(TensorBatch):
    """The tensors of one forward pass over unpadded rows."""

    input_ids: Tensor  # int64 [T]
    token_type_ids: Tensor  # int64 [T]
    position_ids: Tensor  # int64 [T], the position of each token in its sequence
    cu_seqlens: Tensor  # int32 [N + 1], where each of N sequences (rows or pieces) begins, and T
    row_starts: Tensor | None  # int32 [B + 1], where each packed row begins, and T; else None
    max_seqlen: int  # of the data set, not of the longest row: a constant for the compiler
    max_predictions: int  # likewise, masked tokens of a row
    masked_lm_positions: Tensor  # int64 [M], among the T tokens
    masked_lm_labels: Tensor  # int64 [M]
    masked_lm_weights: Tensor  # float32 [M], all 1
    next_sentence_labels: Tensor  # int64 [N], -1: no sentence B
    token_offsets: Offsets  # [B + 1], where each row begins, and T
    sequence_offsets: Offsets  # [N + 1], `cu_seqlens` on the CPU
    masked_offsets: Offsets  # [B + 1], where each row's masked tokens begin, and M

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    @property
    def num_tokens(self) -> int:
        """T: every token is real."""
        return len(self.input_ids)

    @property
    def keys_per_token(self) -> float:
        """The mean number of tokens in a token's own sequence."""
        lengths = np.diff(self.sequence_offsets)
        return float((lengths**2).sum() / lengths.sum())

    def slice(self, start: int, stop: int) -> "UnpaddedBatch":
        tokens = self.token_offsets[start : stop + 1]
        masks = self.masked_offsets[start : stop + 1]
        token, mask = slice(int(tokens[0]), int(tokens[-1])), slice(int(masks[0]), int(masks[-1]))
        # Rows begin where sequences do, and no sequence is empty.
        first, last = np.searchsorted(self.sequence_offsets, (token.start, token.stop)).tolist()
        starts = None if self.row_starts is None else self.row_starts[start : stop + 1]
        return UnpaddedBatch(
            input_ids=self.input_ids[token],
            token_type_ids=self.token_type_ids[token],
            position_ids=self.position_ids[token],
            cu_seqlens=self.cu_seqlens[first : last + 1] - token.start,
            row_starts=None if starts is None else starts - token.start,
            max_seqlen=self.max_seqlen,
            max_predictions=self.max_predictions,
            masked_lm_positions=self.masked_lm_positions[mask] - token.start,
            masked_lm_labels=self.masked_lm_labels[mask],
            masked_lm_weights=self.masked_lm_weights[mask],
            next_sentence_labels=self.next_sentence_labels[first:last],
            token_offsets=tokens - token.start,
            sequence_offsets=self.sequence_offsets[first : last + 1] - token.start,
            masked_offsets=masks - mask.start,
        )


def collate_unpadded(
    examples: Examples, rows: NDArray[np.int64], *, max_seq_length: int, max_predictions: int
) -> UnpaddedBatch:
    """The given rows, in the given order, as one batch in new memory."""
    examples = examples.take(rows)
    ids, masked, pieces = examples.input_ids, examples.flat_positions(), examples.piece_lengths
    assert not len(rows) or ids.lengths.max() <= max_seq_length
    assert not len(rows) or examples.masked_lm_positions.lengths.max() <= max_predictions
    is_b = ordinals(ids.lengths) >= np.repeat(examples.length_a, ids.lengths)
    labels_of_rows = examples.next_sentence_label.astype(np.int64)
    sequences, row_starts = ids.offsets, None
    if pieces is not None:
        sequences = offsets_of(pieces.values)
        labels_of_rows = np.repeat(labels_of_rows, pieces.lengths)
        row_starts = torch.from_numpy(ids.offsets.astype(np.int32))
    return UnpaddedBatch(
        input_ids=torch.from_numpy(ids.values.astype(np.int64)),
        token_type_ids=torch.from_numpy(is_b.astype(np.int64)),
        position_ids=torch.from_numpy(ordinals(np.diff(sequences))),
        cu_seqlens=torch.from_numpy(sequences.astype(np.int32)),
        row_starts=row_starts,
        max_seqlen=max_seq_length,
        max_predictions=max_predictions,
        masked_lm_positions=torch.from_numpy(masked),
        masked_lm_labels=torch.from_numpy(examples.masked_lm_labels.values.astype(np.int64)),
        masked_lm_weights=torch.ones(len(masked)),
        next_sentence_labels=torch.from_numpy(labels_of_rows),
        token_offsets=ids.offsets,
        sequence_offsets=sequences,
        masked_offsets=examples.masked_lm_positions.offsets,
    )


def with_dummy_rows(batch: UnpaddedBatch) -> UnpaddedBatch:
    """The batch with rows of [PAD] at its end, for shapes that compiled code has seen before.

    They have no label, and their slots for masked tokens have weight 0; the offsets on the CPU
    leave them out. Without packed rows there is one, of at least one token, which rounds T and M
    up. With packed rows T is that of full ones, M the most that they can have, and sequences
    without tokens fill `cu_seqlens` up.
    """
    total, masks, longest = batch.num_tokens, len(batch.masked_lm_labels), batch.max_seqlen
    width = min(TOKENS, longest)
    tokens, slots, rows, sequences = width - total % width, -masks % PREDICTIONS, 1, 1
    if batch.row_starts is not None:
        tokens = len(batch) * longest - total
        slots = len(batch) * batch.max_predictions - masks
        rows, sequences_before = max(1, -(-tokens // longest)), len(batch.cu_seqlens) - 1
        places = PIECES * len(batch)
        while places < sequences_before + rows:
            places *= 2
        sequences = places - sequences_before
    place = torch.arange(tokens, device=batch.position_ids.device)
    ends = torch.arange(1, sequences + 1, dtype=torch.int32, device=place.device) * longest + total
    ends, starts = ends.clamp(max=total + tokens), batch.row_starts
    return replace(
        batch,
        input_ids=F.pad(batch.input_ids, (0, tokens)),
        token_type_ids=F.pad(batch.token_type_ids, (0, tokens)),
        position_ids=torch.cat([batch.position_ids, place % longest]),
        cu_seqlens=torch.cat([batch.cu_seqlens, ends]),
        row_starts=None if starts is None else torch.cat([starts, ends[:rows]]),
        masked_lm_positions=F.pad(batch.masked_lm_positions, (0, slots)),
        masked_lm_labels=F.pad(batch.masked_lm_labels, (0, slots)),
        masked_lm_weights=F.pad(batch.masked_lm_weights, (0, slots)),
        next_sentence_labels=F.pad(batch.next_sentence_labels, (0, sequences), value=NO_PAIR),
    )
