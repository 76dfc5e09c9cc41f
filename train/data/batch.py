"""A batch: ragged rows of a shard as tensors of fixed shapes.

B examples, S = max_seq_length, P = max_predictions_per_seq. S and P are fixed by the phase, not by
the longest row: a new shape costs a compilation on CUDA and an entry in a kernel cache on CPU.

    rows            [CLS] the [MASK] sat [SEP] it slept [SEP]      positions 2      labels cat
    input_ids       2 7 4 9 3 8 6 3 0 0    masked_lm_positions   2 0 0
    token_type_ids  0 0 0 0 0 1 1 1 0 0    masked_lm_labels     11 0 0
    attention_mask  1 1 1 1 1 1 1 1 0 0    masked_lm_weights     1 0 0

In packed rows the attention mask numbers the pieces:

    rows            [CLS] the [MASK] sat [SEP] [CLS] it rained [SEP]
    attention_mask  1 1 1 1 1 2 2 2 2 0

Padding is one gather of fixed-size windows (S values from the start of the row, including whatever
follows it, as one numpy item), overwritten after the row's end: bytes move in bulk, not token by
token. numpy does all of it: torch would wake all its threads for each small operation, at several
times the cost.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.pipeline.common.ragged import Offsets, Ragged, offsets_of, ordinals
from clozeline.pipeline.dataset.schema import Examples

WIDEST_TABLE = 1024  # slots: 1 MB


@dataclass(frozen=True, kw_only=True)
class TensorBatch(ABC):
    """What padded and unpadded batches have in common."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def slice(self, start: int, stop: int) -> Self:
        """Rows start to stop, as views where the layout allows; ids and labels always are."""

    def split(self, parts: int) -> list[Self]:
        """Micro-batches of equal numbers of rows; `parts` divides the number of rows."""
        size, rest = divmod(len(self), parts)
        assert not rest, f"{len(self)} rows do not make {parts} equal parts"
        return [self.slice(start, start + size) for start in range(0, len(self), size)]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, in field order."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def _convert(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(value) for name, value in self.tensors().items()}
        return replace(self, **changed)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        return self._convert(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory, which a GPU copies from asynchronously."""
        return self._convert(Tensor.pin_memory)


@dataclass(frozen=True, kw_only=True)
class Batch(TensorBatch):
    """The tensors of one forward pass."""

    input_ids: Tensor  # int64 [B, S]
    token_type_ids: Tensor  # int64 [B, S]
    attention_mask: Tensor  # bool [B, S]; packed int64 [B, S], the piece from 1, 0 at padding
    masked_lm_positions: Tensor  # int64 [B, P], 0 in unused slots
    masked_lm_labels: Tensor  # int64 [B, P], 0 in unused slots
    masked_lm_weights: Tensor  # float32 [B, P], 0 in unused slots
    next_sentence_labels: Tensor  # int64 [B], -1: no sentence B
    example_weights: Tensor  # float32 [B], 0: a padding row at the end of an evaluation

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_tokens(self) -> int:
        """Real tokens, without padding."""
        return int(((self.attention_mask != 0).sum(1) * self.example_weights).sum())

    def slice(self, start: int, stop: int) -> "Batch":
        return self._convert(lambda tensor: tensor[start:stop])


AnyBatch = TypeVar("AnyBatch", bound=TensorBatch)


@dataclass(frozen=True, kw_only=True)
class LoadedBatch(Generic[AnyBatch]):
    """One rank's part of a global batch; the sums of all ranks' counts are those of the batch."""

    batch: AnyBatch
    #: The position after the global batch, where a run that has trained on it continues.
    next_position: int
    #: Real tokens, masked tokens and sentence pairs in this part.
    num_tokens: int
    num_predictions: int
    num_pairs: int
    #: The sum of `Order.hashes` of this part, a term of the data digest; see `digest_text`.
    digest: int

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same with its tensors on another device."""
        return replace(self, batch=self.batch.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same in pinned memory; `DataLoader(pin_memory=True)` calls this."""
        return replace(self, batch=self.batch.pin_memory())


def collate(
    examples: Examples,
    rows: NDArray[np.int64],
    *,
    max_seq_length: int,
    max_predictions: int,
    pad_id: int,
) -> Batch:
    """The given rows, in the given order, as one batch in new memory.

    Blank rows (`blank_examples`) become padding rows of weight 0.
    """
    starts, is_token = _bounds(examples.input_ids, rows, max_seq_length)
    input_ids = _padded(examples.input_ids.values, starts, is_token, pad_id)
    starts, is_masked = _bounds(examples.masked_lm_positions, rows, max_predictions)
    positions = _padded(examples.masked_lm_positions.values, starts, is_masked, 0)
    labels = _padded(examples.masked_lm_labels.values, starts, is_masked, 0)
    is_a = _prefixes(examples.length_a[rows], max_seq_length)
    is_b = is_token > is_a
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(is_b.astype(np.int64)),
        attention_mask=torch.from_numpy(_attention_mask(examples, rows, is_token)),
        masked_lm_positions=torch.from_numpy(positions),
        masked_lm_labels=torch.from_numpy(labels),
        masked_lm_weights=torch.from_numpy(is_masked.astype(np.float32)),
        next_sentence_labels=torch.from_numpy(examples.next_sentence_label[rows].astype(np.int64)),
        example_weights=torch.from_numpy((examples.length_a[rows] > 0).astype(np.float32)),
    )


def _attention_mask(
    examples: Examples, rows: NDArray[np.int64], is_token: NDArray[np.bool_]
) -> NDArray[Any]:
    """Which slots have tokens, [B, S]; in packed rows the piece of each token, from 1."""
    if examples.piece_lengths is None:
        return is_token
    pieces = examples.piece_lengths.take(rows)
    starts = offsets_of(pieces.values)[pieces.offsets[:-1]]
    numbers = np.repeat(1 + ordinals(pieces.lengths), pieces.values)
    return _padded(numbers, starts, is_token, 0)


def digest_text(*terms: int) -> str:
    """The data digest of a global batch: the sum of its rows' hashes modulo 2**64, in hex.

    A sum does not depend on how the rows were split, so any number of ranks gives the same 16 hex
    digits; an int64 `all_reduce` of the terms wraps around in the same way.
    """
    return f"{sum(terms) % 2**64:016x}"


def _bounds(
    column: Ragged, rows: NDArray[np.int64], width: int
) -> tuple[Offsets, NDArray[np.bool_]]:
    """Where each row begins, [B], and which of `width` slots it fills, [B, width]."""
    starts = column.offsets[rows]
    lengths = column.offsets[rows + 1] - starts
    assert not len(rows) or lengths.max() <= width
    return starts, _prefixes(lengths, width)


def _prefixes(lengths: NDArray[Any], width: int) -> NDArray[np.bool_]:
    """True in the first n slots of a row of length n, [B, width]."""
    if width > WIDEST_TABLE:
        is_prefix: NDArray[np.bool_] = np.arange(width) < lengths[:, None]
        return is_prefix
    return _prefix_masks(width).take(lengths, axis=0, mode="clip")


@lru_cache
def _prefix_masks(width: int) -> NDArray[np.bool_]:
    """Row n is True in its first n slots, [width + 1, width]; a lookup beats a comparison."""
    return np.tri(width + 1, width, -1, dtype=bool)


def _padded(
    values: NDArray[Any], starts: Offsets, is_value: NDArray[np.bool_], fill: int
) -> NDArray[np.int64]:
    """The rows that begin at `starts`, padded to the width of `is_value`, [B, width]."""
    padded = _windows(values, starts, is_value.shape[1])
    if fill:
        np.copyto(padded, fill, where=~is_value)
    else:  # the usual case, at half the cost
        np.multiply(padded, is_value, out=padded)
    return padded.astype(np.int64)


def _windows(values: NDArray[Any], starts: Offsets, width: int) -> NDArray[Any]:
    """The `width` values from each start on, [B, width]."""
    last = len(values) - width  # where the last full window begins
    if starts.max(initial=0) <= last:
        return _take_windows(values, starts, width)
    ends = np.append(values[max(last, 0) :], np.zeros(width, values.dtype))
    if last <= 0:
        return _take_windows(ends, starts, width)
    windows = _take_windows(values, np.minimum(starts, last), width)
    late = starts > last
    windows[late] = _take_windows(ends, starts[late] - last, width)
    return windows


def _take_windows(values: NDArray[Any], starts: Offsets, width: int) -> NDArray[Any]:
    """A window is one numpy item of many bytes: copied at once, not value by value."""
    values = np.ascontiguousarray(values)
    whole = np.dtype((np.void, width * values.itemsize))
    count = max(len(values) - width + 1, 0)
    windows = np.ndarray((count,), whole, values.data, 0, (values.itemsize,))
    return windows[starts].view(values.dtype).reshape(len(starts), width)
