"""Global batches by position: looked up in the order, gathered from a pool, counted, split.

About 2,000 examples (a slab) are collated at once and split into batches as views, because numpy's
cost is per call as long as batches are small. Every rank knows the counts of the global batch, so
the loss can be divided by them before any forward pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import UInt64Array
from pipeline.common.errors import InputError
from pipeline.dataset.schema import NO_PAIR, Examples
from train.data.batch import Batch, LoadedBatch, collate, concatenate, example_hashes, split
from train.data.length_bins import assign_bins
from train.data.order import Order, Pool
from train.data.shard_set import ShardSet
from train.data.unpadded import (
    UnpaddedBatch,
    collate_unpadded,
    concatenate_unpadded,
    split_unpadded,
    unpadded_hashes,
)

NO_END = 2**63 - 1
SLAB_ROWS = 2048  # examples of a rank that are collated at once
SLAB_TOKENS = SLAB_ROWS * 512  # at most: 17 MB of tensors
WIDTH_MULTIPLE = 32  # with length bins, the width of a batch is rounded up to this


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """Which masks rows have, how they are grouped, and whether they are padded."""

    remask: bool = True
    #: Global batches in a window that is sorted by length; 0: no sorting.
    length_bins: int = 0
    unpadded: bool = False


@dataclass(frozen=True)
class RankSlice:
    """The contiguous slice of each global batch that one rank reads.

    Raises InputError for a batch size that the number of processes does not divide.
    """

    batch_size: int  # of the global batch, in examples
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size
        if self.batch_size < 1 or self.batch_size % self.world_size:
            below = self.batch_size - self.batch_size % self.world_size
            fitting = f"{below} or {below + self.world_size}" if below > 0 else self.world_size
            raise InputError(
                f"a batch of {self.batch_size} examples cannot be split evenly among "
                f"{self.world_size} processes; use {fitting}."
            )

    @property
    def rows(self) -> int:
        """Examples in the slice."""
        return self.batch_size // self.world_size

    @property
    def start(self) -> int:
        """Offset of the slice in the global batch."""
        return self.rank * self.rows


@dataclass(frozen=True)
class _OpenPool:
    """A pool in memory."""

    examples: Examples
    rows: NDArray[np.int64]  # in reading order


@dataclass(frozen=True)
class _Window:
    """Consecutive global batches whose rows were put into length bins."""

    start: int
    positions: NDArray[np.int64]  # [bins, batch_size]
    widths: list[int]  # tokens of the longest row in each bin, rounded up


class BatchReader:
    """Builds a rank's slices of global batches from their positions; keeps the last pools open."""

    def __init__(
        self, shards: ShardSet, order: Order, rank_slice: RankSlice, layout: BatchLayout
    ) -> None:
        self._shards = shards
        self._order = order
        self._slice = rank_slice
        self._layout = layout
        self._pools: dict[Pool, _OpenPool] = {}
        self._window: _Window | None = None

    @property
    def batches_at_once(self) -> int:
        """Global batches worth reading together: a slab, but at most one epoch."""
        if self._layout.length_bins:
            return 1  # batches differ in width
        rows = min(SLAB_ROWS, SLAB_TOKENS // self._shards.max_seq_length)
        of_slab = rows // self._slice.rows
        return max(1, min(of_slab, self._order.epoch_rows // self._slice.batch_size))

    def read(self, starts: NDArray[np.int64], *, end: int = NO_END) -> list[LoadedBatch[Any]]:
        """The rank's slices of the global batches at the given ascending positions, [K].

        Positions from `end` on (in the last batch) become padding rows.
        """
        part = self._slice
        in_batch = np.arange(part.batch_size)
        positions, width = (starts[:, None] + in_batch).ravel(), self._shards.max_seq_length
        if self._layout.length_bins:
            positions, width = self._binned(int(starts[0]))
        is_mine = np.tile(in_batch // part.rows == part.rank, len(starts))
        counts = np.zeros((3, len(positions)), dtype=np.int64)
        parts = []
        done = 0
        for examples, rows in self._rows(positions[: np.searchsorted(positions, end)]):
            here = slice(done, done + len(rows))
            counts[:, here] = _counts(examples, rows)
            parts.append(self._collate(examples, rows[is_mine[here]], width))
            done += len(rows)
        of_batches = counts.reshape(3, len(starts), part.batch_size).sum(axis=2)  # [3, K]
        mine = (starts[:, None] + part.start + np.arange(part.rows)).ravel()
        batches, hashes = self._split(parts, mine)
        return self._with_counts(batches, hashes, starts, of_batches, end)

    def _binned(self, start: int) -> tuple[NDArray[np.int64], int]:
        """The ascending positions of the global batch that begins at `start`, and its width."""
        size, bins = self._slice.batch_size, self._layout.length_bins
        begin = start - start % (size * bins)
        if self._window is None or self._window.start != begin:
            self._window = self._read_window(begin)
        batch = (start - begin) // size
        return self._window.positions[batch], self._window.widths[batch]

    def _read_window(self, start: int) -> _Window:
        size = self._slice.batch_size
        positions = start + np.arange(size * self._layout.length_bins)
        self._window = None
        lengths = np.concatenate(
            [_counts(examples, rows)[0] for examples, rows in self._rows(positions)]
        )
        bins = assign_bins(
            lengths,
            start=start,
            epoch_rows=self._order.epoch_rows,
            batch_size=size,
            key=self._order.key("bins", start // len(positions)),
        )
        widths = -(-lengths[bins].max(axis=1) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
        widths = np.minimum(widths, self._shards.max_seq_length)
        return _Window(start, positions[bins], widths.tolist())

    def _rows(self, positions: NDArray[np.int64]) -> Iterator[tuple[Examples, NDArray[np.int64]]]:
        """The rows at ascending positions, pool by pool."""
        # A window is read twice, its lengths first, so its pools stay open until it is done.
        kept_from = int(positions[0]) if self._layout.length_bins else NO_END
        if self._window is not None:
            kept_from = self._window.start
        for pool, offsets in self._order.locate(positions):
            if pool not in self._pools:  # free the memory of other pools first
                kept = {p: o for p, o in self._pools.items() if p.start + p.rows > kept_from}
                self._pools = kept
                examples = self._shards.read(pool, remask=self._layout.remask)
                self._pools[pool] = _OpenPool(examples, self._order.rows(pool))
            opened = self._pools[pool]
            yield opened.examples, opened.rows[offsets]

    def _collate(
        self, examples: Examples, rows: NDArray[np.int64], width: int
    ) -> Batch | UnpaddedBatch:
        if self._layout.unpadded:
            return collate_unpadded(examples, rows, max_seq_length=self._shards.max_seq_length)
        return collate(
            examples,
            rows,
            max_seq_length=width,
            max_predictions=self._shards.max_predictions,
            pad_id=self._shards.pad_id,
        )

    def _split(
        self, parts: list[Any], mine: NDArray[np.int64]
    ) -> tuple[Sequence[Batch | UnpaddedBatch], UInt64Array]:
        """The batches of a slab, as views, and the hashes of its rows at the positions `mine`.

        Missing rows at the end become padding rows.
        """
        number, pad_id = len(mine) // self._slice.rows, self._shards.pad_id
        if self._layout.unpadded:
            rows = concatenate_unpadded(parts)
            return split_unpadded(rows, number), unpadded_hashes(rows, mine, pad_id=pad_id)
        slab = concatenate(parts).padded(len(mine), pad_id=pad_id)
        return split(slab, number), example_hashes(slab, mine)

    def _with_counts(
        self,
        batches: Sequence[Batch | UnpaddedBatch],
        hashes: UInt64Array,
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        end: int,
    ) -> list[LoadedBatch[Any]]:
        digests = hashes.reshape(len(starts), -1).sum(axis=1).view(np.int64).tolist()
        stops = (starts + self._slice.batch_size).tolist()
        return [
            LoadedBatch(
                batch=batch,
                next_position=min(stop, end),
                num_tokens=num_tokens,
                num_predictions=num_predictions,
                num_pairs=num_pairs,
                digest=digest,
            )
            for batch, stop, (num_tokens, num_predictions, num_pairs), digest in zip(
                batches, stops, counts.T.tolist(), digests, strict=True
            )
        ]


def _counts(examples: Examples, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Tokens, masked tokens, and whether there is a sentence B, for each row: three times [R]."""
    tokens, masks = examples.input_ids.offsets, examples.masked_lm_positions.offsets
    return [
        tokens[rows + 1] - tokens[rows],
        masks[rows + 1] - masks[rows],
        examples.next_sentence_label[rows] != NO_PAIR,
    ]
