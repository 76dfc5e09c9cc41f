"""Global batches by position: found in the order, gathered from a pool, counted, cut into views.

Some thousand examples are collated at once, because numpy's cost is by call as long as batches are
small. Counts are of the global batch and known to every rank, so the loss can be divided by them
before any forward pass.
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
from train.data.length_bins import binned_places
from train.data.order import Order, Pool
from train.data.shard_set import ShardSet
from train.data.unpadded import (
    UnpaddedBatch,
    collate_unpadded,
    concatenate_unpadded,
    split_unpadded,
    unpadded_hashes,
)

FOREVER = 2**63 - 1
SLAB_ROWS = 2048  # examples of a rank that are collated at once
WIDTHS = 32  # with length bins, batches are so many tokens wide, or twice, three times ... as many


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """In what form rows are handed out."""

    remask: bool = True
    #: Global batches in a window that is sorted by length; 0: rows come as they are ordered.
    length_bins: int = 0
    unpadded: bool = False


@dataclass(frozen=True)
class RankSlice:
    """Which part of each global batch a rank takes.

    Raises InputError where the batch does not divide.
    """

    batch_size: int  # of the global batch
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size
        if self.batch_size < 1 or self.batch_size % self.world_size:
            below = self.batch_size - self.batch_size % self.world_size
            fitting = f"{below} or {below + self.world_size}" if below > 0 else self.world_size
            raise InputError(
                f"a batch of {self.batch_size} examples does not divide among {self.world_size} "
                f"processes; {fitting} would."
            )

    @property
    def rows(self) -> int:
        """Examples of one rank's part."""
        return self.batch_size // self.world_size

    @property
    def start(self) -> int:
        """Where the part begins in the global batch."""
        return self.rank * self.rows


@dataclass(frozen=True)
class _Open:
    """A pool that was read."""

    examples: Examples
    rows: NDArray[np.int64]  # in the order in which they are read


@dataclass(frozen=True)
class _Window:
    """Global batches whose rows were put into length bins."""

    start: int
    positions: NDArray[np.int64]  # [bins, batch_size]
    widths: list[int]  # tokens of the longest row of each, rounded up


class BatchReader:
    """Makes global batches from where they start; keeps the pools that it read last."""

    def __init__(self, shards: ShardSet, order: Order, share: RankSlice, form: BatchLayout) -> None:
        self._shards = shards
        self._order = order
        self._share = share
        self._form = form
        self._pools: dict[Pool, _Open] = {}
        self._window: _Window | None = None

    @property
    def batches_at_once(self) -> int:
        """Global batches worth reading together: some thousand examples, but no second epoch."""
        share = self._share
        if self._form.length_bins:
            return 1  # each has a width of its own
        return max(1, min(SLAB_ROWS // share.rows, self._order.epoch_rows // share.batch_size))

    def read(self, starts: NDArray[np.int64], *, end: int = FOREVER) -> list[LoadedBatch]:
        """The rank's parts of the global batches at the given rising positions, [K].

        Positions from `end` on (in the last batch) become rows of padding.
        """
        share = self._share
        places = np.arange(share.batch_size)
        positions, width = (starts[:, None] + places).ravel(), self._shards.max_seq_length
        if self._form.length_bins:
            positions, width = self._binned(int(starts[0]))
        is_mine = np.tile(places // share.rows == share.rank, len(starts))
        counts = np.zeros((3, len(positions)), dtype=np.int64)
        parts = []
        done = 0
        for examples, rows in self._rows(positions[: np.searchsorted(positions, end)]):
            here = slice(done, done + len(rows))
            counts[:, here] = _counts(examples, rows)
            parts.append(self._collate(examples, rows[is_mine[here]], width))
            done += len(rows)
        of_batches = counts.reshape(3, len(starts), share.batch_size).sum(axis=2)  # [3, K]
        mine = (starts[:, None] + share.start + np.arange(share.rows)).ravel()
        batches, hashes = self._cut(parts, mine)
        return self._hand_out(batches, hashes, starts, of_batches, end)

    def _binned(self, start: int) -> tuple[NDArray[np.int64], int]:
        """The rising positions of the global batch that begins at `start`, and its width."""
        size, bins = self._share.batch_size, self._form.length_bins
        begin = start - start % (size * bins)
        if self._window is None or self._window.start != begin:
            self._window = self._read_window(begin)
        batch = (start - begin) // size
        return self._window.positions[batch], self._window.widths[batch]

    def _read_window(self, start: int) -> _Window:
        size = self._share.batch_size
        positions = start + np.arange(size * self._form.length_bins)
        self._window = None
        lengths = np.concatenate(
            [_counts(examples, rows)[0] for examples, rows in self._rows(positions)]
        )
        places = binned_places(
            lengths,
            start=start,
            epoch_rows=self._order.epoch_rows,
            batch_size=size,
            key=self._order.key("bins", start // len(positions)),
        )
        widths = -(-lengths[places].max(axis=1) // WIDTHS) * WIDTHS
        widths = np.minimum(widths, self._shards.max_seq_length)
        return _Window(start, positions[places], widths.tolist())

    def _rows(self, positions: NDArray[np.int64]) -> Iterator[tuple[Examples, NDArray[np.int64]]]:
        """Rising positions as rows of one pool after the other."""
        # A window is read twice, first its lengths: the pools that it begins in are kept for that.
        kept_from = int(positions[0]) if self._form.length_bins else FOREVER
        if self._window is not None:
            kept_from = self._window.start
        for pool, places in self._order.locate(positions):
            if pool not in self._pools:  # let go of memory first
                kept = {p: o for p, o in self._pools.items() if p.start + p.rows > kept_from}
                self._pools = kept
                examples = self._shards.read(pool, remask=self._form.remask)
                self._pools[pool] = _Open(examples, self._order.rows(pool))
            opened = self._pools[pool]
            yield opened.examples, opened.rows[places]

    def _collate(
        self, examples: Examples, rows: NDArray[np.int64], width: int
    ) -> Batch | UnpaddedBatch:
        if self._form.unpadded:
            return collate_unpadded(examples, rows, max_seq_length=self._shards.max_seq_length)
        return collate(
            examples,
            rows,
            max_seq_length=width,
            max_predictions=self._shards.max_predictions,
            pad_id=self._shards.pad_id,
        )

    def _cut(
        self, parts: list[Any], mine: NDArray[np.int64]
    ) -> tuple[Sequence[Batch | UnpaddedBatch], UInt64Array]:
        """A slab as its batches, as views, and the hashes of its rows; `mine` are their positions.

        Rows that are missing at the end are padding.
        """
        number, pad_id = len(mine) // self._share.rows, self._shards.pad_id
        if self._form.unpadded:
            rows = concatenate_unpadded(parts)
            return split_unpadded(rows, number), unpadded_hashes(rows, mine, pad_id=pad_id)
        slab = concatenate(parts).padded(len(mine), pad_id=pad_id)
        return split(slab, number), example_hashes(slab, mine)

    def _hand_out(
        self,
        batches: Sequence[Batch | UnpaddedBatch],
        hashes: UInt64Array,
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        end: int,
    ) -> list[LoadedBatch]:
        digests = hashes.reshape(len(starts), -1).sum(axis=1).view(np.int64).tolist()
        stops = (starts + self._share.batch_size).tolist()
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


def _counts(examples: Examples, rows: NDArray[np.int64]) -> list[NDArray]:
    """Tokens, masked tokens, and whether there is a B, of each row: three times [R]."""
    tokens, masks = examples.input_ids.offsets, examples.masked_lm_positions.offsets
    return [
        tokens[rows + 1] - tokens[rows],
        masks[rows + 1] - masks[rows],
        examples.next_sentence_label[rows] != NO_PAIR,
    ]
