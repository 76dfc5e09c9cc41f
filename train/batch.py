"""A batch: ragged rows of a shard as tensors of fixed shapes.

B examples, S = max_seq_length, P = max_predictions_per_seq; S and P are those of the data set, not
of the longest row: a new shape costs a compilation on CUDA and an entry in a kernel cache on CPU.

    rows            [CLS] the [MASK] sat [SEP] it slept [SEP]      positions 2      labels cat
    input_ids       2 7 4 9 3 8 6 3 0 0    masked_lm_positions   2 0 0
    token_type_ids  0 0 0 0 0 1 1 1 0 0    masked_lm_labels     11 0 0
    attention_mask  1 1 1 1 1 1 1 1 0 0    masked_lm_weights     1 0 0

Padding is one gather of whole windows (S values from where the row begins, whatever follows it),
blanked after the row's end: it moves bytes and never looks at single tokens. All of it is numpy's
work: torch would wake all its threads for each small operation, at several times the cost.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from pipeline.draws import GOLDEN, Words, mix64, random_words, stream_key
from pipeline.ragged import Offsets, Ragged
from pipeline.schema import NO_PAIR, Examples


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The tensors of one forward pass."""

    input_ids: Tensor  # int64 [B, S]
    token_type_ids: Tensor  # int64 [B, S]
    attention_mask: Tensor  # bool [B, S]
    masked_lm_positions: Tensor  # int64 [B, P], 0 in unused slots
    masked_lm_labels: Tensor  # int64 [B, P], 0 in unused slots
    masked_lm_weights: Tensor  # float32 [B, P], 0 in unused slots
    next_sentence_labels: Tensor  # int64 [B], -1: there is no B
    example_weights: Tensor  # float32 [B], 0: a row of padding at the end of an evaluation

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int((self.attention_mask.sum(1) * self.example_weights).sum())

    def tensors(self) -> dict[str, Tensor]:
        """By name, in the order of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        moved = {k: v.to(device, non_blocking=non_blocking) for k, v in self.tensors().items()}
        return Batch(**moved)

    def pin_memory(self) -> "Batch":
        """The same batch in pages that the GPU can fetch by itself."""
        return Batch(**{k: v.pin_memory() for k, v in self.tensors().items()})

    def slice(self, start: int, stop: int) -> "Batch":
        """Some rows, as views."""
        return Batch(**{k: v[start:stop] for k, v in self.tensors().items()})

    def padded(self, rows: int, *, pad_id: int) -> "Batch":
        """Rows of padding at the end, of weight 0, so that there are `rows` of them."""
        missing = rows - len(self)
        blank = {k: v.new_zeros((missing, *v.shape[1:])) for k, v in self.tensors().items()}
        blank["input_ids"].fill_(pad_id)
        blank["next_sentence_labels"].fill_(NO_PAIR)
        # A row that attends to nothing has no softmax: let it see its first token.
        blank["attention_mask"][:, :1] = True
        return concatenate([self, Batch(**blank)]) if missing else self


@dataclass(frozen=True, kw_only=True)
class LoadedBatch:
    """One rank's part of a global batch, and what it has to know of the whole."""

    batch: Batch
    #: The position after the global batch: where a run that has trained on it goes on.
    next_position: int
    #: Of the whole global batch, over all ranks: real tokens, masked tokens, examples with a B.
    num_tokens: int
    num_predictions: int
    num_pairs: int
    #: This rank's term of the data digest; see `digest_text`.
    digest: int

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "LoadedBatch":
        """With the tensors on another device."""
        return self._with(self.batch.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "LoadedBatch":
        """With the tensors in pinned memory; a `DataLoader(pin_memory=True)` calls this."""
        return self._with(self.batch.pin_memory())

    def _with(self, batch: Batch) -> "LoadedBatch":
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "batch"}
        return LoadedBatch(batch=batch, **facts)


def collate(
    examples: Examples,
    rows: NDArray[np.int64],
    *,
    max_seq_length: int,
    max_predictions: int,
    pad_id: int,
) -> Batch:
    """The given rows, in the given order, as one batch of fresh memory."""
    input_ids, is_token = _padded(examples.input_ids, rows, max_seq_length, pad_id)
    positions, is_masked = _padded(examples.masked_lm_positions, rows, max_predictions, 0)
    labels, _ = _padded(examples.masked_lm_labels, rows, max_predictions, 0)
    is_b = is_token & (_places(max_seq_length) >= examples.length_a[rows, None])
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(is_b.astype(np.int64)),
        attention_mask=torch.from_numpy(is_token),
        masked_lm_positions=torch.from_numpy(positions),
        masked_lm_labels=torch.from_numpy(labels),
        masked_lm_weights=torch.from_numpy(is_masked.astype(np.float32)),
        next_sentence_labels=torch.from_numpy(examples.next_sentence_label[rows].astype(np.int64)),
        example_weights=torch.ones(len(rows)),
    )


def concatenate(parts: list[Batch]) -> Batch:
    """All rows of the parts (at least one), in order; one part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    joined = {
        name: np.concatenate([part.tensors()[name].numpy() for part in parts])
        for name in parts[0].tensors()
    }
    return Batch(**{name: torch.from_numpy(column) for name, column in joined.items()})


def split(batch: Batch, parts: int) -> list[Batch]:
    """Micro-batches of equal size, as views; `parts` divides the number of rows."""
    size, rest = divmod(len(batch), parts)
    assert not rest, f"{len(batch)} rows do not make {parts} equal parts"
    return [batch.slice(start, start + size) for start in range(0, len(batch), size)]


def example_hashes(batch: Batch, positions: NDArray[np.int64]) -> Words:
    """64 bits that name each row and its position in the endless sequence, [B]; 0 for padding rows.

    All of the row counts: masked ids, masked positions and labels, where B begins and ends, the
    next-sentence label. It is a sum modulo 2**64 with random weights, which costs one pass.
    """
    arrays = {name: tensor.numpy() for name, tensor in batch.tensors().items()}
    lengths_b = arrays["token_type_ids"].sum(axis=1)  # those of the rows follow from their padding
    columns = {
        "input_ids": arrays["input_ids"],
        "masked_lm_positions": arrays["masked_lm_positions"],
        "masked_lm_labels": arrays["masked_lm_labels"],
        "rest": np.stack([lengths_b, arrays["next_sentence_labels"]], axis=1),
    }
    hashes = mix64(positions)
    for name, column in columns.items():
        weights = random_words(stream_key(0, f"digest/{name}"), np.arange(column.shape[1]))
        hashes += np.einsum("bs,s->b", column.view(np.uint64), weights)
    return np.where(arrays["example_weights"] > 0, mix64(hashes + GOLDEN), np.uint64(0))


def batch_digest(batch: Batch, start: int) -> int:
    """The digest of rows that stand at positions start, start + 1, ...: signed, 64 bits."""
    hashes = example_hashes(batch, start + np.arange(len(batch)))
    return int(hashes.sum().view(np.int64))


def digest_text(*terms: int) -> str:
    """The data digest of a global batch, from those of its parts: their sum modulo 2**64.

    A sum does not ask who added what, so any number of ranks gives the same 16 hex digits; an int64
    `all_reduce` of the terms wraps around in just this way.
    """
    return f"{sum(terms) % 2**64:016x}"


def _padded(
    column: Ragged, rows: NDArray[np.int64], width: int, fill: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The rows, filled up to `width`, and where they are not filling; both [B, width]."""
    starts = column.offsets[rows]
    lengths = column.offsets[rows + 1] - starts
    assert not len(rows) or lengths.max() <= width
    padded = _windows(column.values, starts, width)
    is_value = _places(width) < lengths.astype(np.uint16)[:, None]
    np.copyto(padded, fill, where=~is_value)
    return padded.astype(np.int64), is_value


def _windows(values: NDArray, starts: Offsets, width: int) -> NDArray:
    """The `width` values from each start on, whatever they are, [B, width]."""
    if starts.max(initial=0) + width > len(values):  # the last rows of a pool
        values = np.append(values, np.zeros(width, values.dtype))
    return sliding_window_view(values, width)[starts]


def _places(width: int) -> NDArray[np.uint16]:
    return np.arange(width, dtype=np.uint16)  # as narrow as length_a: comparing is all about bytes
