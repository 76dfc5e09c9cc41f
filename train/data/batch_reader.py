"""Global batches by position: looked up in the order, gathered from the shards, counted, split.

    starts 0, 256, ..  ->  blocks of positions  ->  rows of many shards, copied  ->  batches

A rank reads its own rows only, and only these are masked anew. The rows of a block (up to 65,536,
in 25 MB) are gathered at once, because they come from many shards and numpy's cost is per call as
long as there are few rows of each. For the same reason about 2,000 rows (a slab) are collated at
once and split into batches as views.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.dataset.schema import (
    NO_PAIR,
    Examples,
    concatenate_examples,
    take_from_each,
)
from clozeline.pipeline.examples.masks import OwnMasking
from clozeline.train.data.batch import Batch, LoadedBatch, collate
from clozeline.train.data.order import Located, Order, RankSlice, assign_bins, deal
from clozeline.train.data.prefetch import OpenShards
from clozeline.train.data.shard_set import ShardSet, blank_examples, config_at
from clozeline.train.data.unpadded import UnpaddedBatch, collate_unpadded

NO_END = 2**63 - 1
SLAB_ROWS = 2048  # examples of a rank that are collated at once
SLAB_TOKENS = SLAB_ROWS * 512  # at most: 17 MB of tensors
BLOCK_SLABS = 8, 32  # most in a block, for few and many streams: few slabs stay in the CPU's cache
SHARDS_AHEAD = 2  # fetched before they are needed, at least
POOLS_AHEAD = 16  # searched for them, at most
WIDTH_MULTIPLE = 32  # with length bins, the width of a batch is rounded up to this


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """Which masks rows have, how they are grouped, and whether they are padded."""

    #: The rate of masks that are drawn anew in each epoch; None: epoch 0 has the stored masks.
    masked_lm_prob: float | None = None
    #: A program's own choice of the tokens; then they are drawn anew in epoch 0, too.
    masking: OwnMasking | None = None
    #: Global batches in a window that is sorted by length; 0: no sorting.
    length_bins: int = 0
    unpadded: bool = False


class BatchReader:
    """Builds a rank's parts of global batches from the positions where they begin.

    With `fetches` 0, nothing is fetched ahead (`OpenShards`).
    """

    def __init__(
        self,
        shards: ShardSet,
        order: Order,
        rank_slice: RankSlice,
        layout: BatchLayout,
        *,
        fetches: int,
    ) -> None:
        self._shards = shards
        self.order = order
        self._slice = rank_slice
        self._layout = layout
        #: The ranks that deal their rows; None where each keeps its own.
        self._group: range | None = None
        if layout.unpadded and not shards.manifest.config.is_packed and len(rank_slice.group) > 1:
            self._group = rank_slice.group
        step = gcd(order.streams, rank_slice.world_size)
        steps = np.arange(0, order.streams, step)
        ranks = np.unique(np.array(self._group or [rank_slice.rank]) % step)
        #: The streams of the order that the positions of the group are in.
        self._streams = np.sort((ranks[:, None] + steps).ravel())
        self._open = OpenShards(shards.read, threads=fetches)
        self._has_begun = False
        self._num_shards = int(np.count_nonzero(order.shard_rows))

    @property
    def _batches_at_once(self) -> int:
        """Global batches worth collating together: a slab, but at most one epoch."""
        if self._layout.length_bins:
            return 1  # batches differ in width
        rows = min(SLAB_ROWS, SLAB_TOKENS // self._shards.max_seq_length)
        of_slab = rows // self._slice.rows
        return max(1, min(of_slab, self.order.epoch_rows // self._slice.batch_size))

    def located(self, starts: NDArray[np.int64]) -> Located:
        """Where the rank's rows of the global batches at `starts` are stored, batch by batch.

        With length bins, the batches are those of one window.
        """
        return self.order.locate(self._positions(starts, self._slots(starts)).ravel())

    def rows(self, start: int) -> tuple[Located, Examples]:
        """The rank's rows of the batch at `start`: where they are stored, and with their masks."""
        if not self._layout.length_bins:
            self._fetch(start, start + self._slice.batch_size, NO_END)
        located = self.located(np.array([start]))
        examples, index = self._gather(located)
        return located, examples.take(index)

    def slabs(
        self, starts: Iterable[int], *, end: int = NO_END
    ) -> Generator[list[LoadedBatch[Any]]]:
        """The rank's parts of the global batches at the given ascending positions, by slab.

        Positions from `end` on (in the last batch) become padding rows.
        """
        with self._open:
            for block in self._blocks(iter(starts)):
                yield from self._read(np.array(block), end)

    def _blocks(self, starts: Iterator[int]) -> Iterator[list[int]]:
        """The batches whose rows are gathered together."""
        if self._layout.length_bins:
            window = self._slice.batch_size * self._layout.length_bins
            for _, of_window in groupby(starts, key=lambda start: start // window):
                yield list(of_window)
            return
        slab, slabs = self._batches_at_once, 1  # small at first: training waits for it
        least, largest = BLOCK_SLABS
        of_block = SLAB_ROWS * min(max(len(self._streams) // 2, least), largest)
        of_pool = min(self.order.pool_rows, self.order.epoch_rows) // self._slice.batch_size
        most = max(1, min(of_block // self._slice.rows, of_pool) // slab)
        while block := list(islice(starts, slab * slabs)):
            yield block
            slabs = min(2 * slabs, most)

    def _read(self, starts: NDArray[np.int64], end: int) -> Iterator[list[LoadedBatch[Any]]]:
        if not self._layout.length_bins:
            self._fetch(int(starts[0]), min(int(starts[-1]) + self._slice.batch_size, end), end)
        slots = self._slots(starts)  # [K, R]
        positions = self._positions(starts, slots)
        located = self.order.locate(positions[positions < end])
        examples, rows = self._gather(located)
        hashes = self.order.hashes(located, slots[positions < end])
        if missing := slots.size - len(rows):
            rows = np.append(rows, [len(examples)] * missing)
            hashes = np.append(hashes, np.zeros(missing, np.uint64))
            examples = concatenate_examples([examples, self._blank(1)])
        hashes *= examples.length_a[rows] > 0  # 0 for a blank row
        at_once = self._batches_at_once
        for first in range(0, len(starts), at_once):
            here = slice(first, first + at_once)
            of_slab = slice(first * self._slice.rows, (first + at_once) * self._slice.rows)
            yield self._slab(examples, rows[of_slab], hashes[of_slab], starts[here], end)

    def _slots(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rank's slots in the batches at `starts` [K], ascending, [K, R]."""
        slots = self._slice.positions(starts, self._group)
        if self._group is None:
            return slots
        slots.sort(axis=1)
        located = self.order.locate(self._positions(starts, slots).ravel())
        ranks = deal(self._lengths(located).reshape(slots.shape), len(self._group))
        is_mine = ranks == self._group.index(self._slice.rank)
        mine: NDArray[np.int64] = slots[is_mine].reshape(len(starts), -1)
        return mine

    def _positions(self, starts: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions whose rows are in the slots [K, R]: others where bins sort a window."""
        size, bins, streams = self._slice.batch_size, self._layout.length_bins, self.order.streams
        if not bins:
            return slots
        begin = int(starts[0]) - int(starts[0]) % (size * bins)
        self._fetch(begin, begin + size * bins, NO_END)
        turns = streams * np.arange(size * bins // streams)
        moved = np.zeros((bins, size), dtype=np.int64)
        for stream in self._streams.tolist():
            lengths = self._lengths(self.order.locate(begin + stream + turns))
            assigned = assign_bins(
                lengths,
                start=begin,
                epoch_rows=self.order.epoch_rows,
                batch_size=size,
                key=self.order.key("bins", begin // (size * bins)),
                streams=streams,
                stream=stream,
            )
            moved[:, stream::streams] = begin + stream + streams * assigned
        batches, in_batch = (slots - begin) // size, (slots - begin) % size
        return moved[batches, in_batch]

    def _fetch(self, first: int, stop: int, end: int) -> None:
        """Open the shards of the positions from `first` to `stop`; fetch the next ones ahead.

        The next ones are those of one or more pools ahead: a rank with one stream reads a shard for
        many pools, and then needs the next one from one step to the next.
        """
        pool = self.order.pool_at(first)
        needed = self.order.shards_of(pool, self._streams)
        while pool.stop < stop:
            pool = self.order.pool_at(pool.stop)
            needed += self.order.shards_of(pool, self._streams)
        ahead: list[int] = []
        for _ in range(POOLS_AHEAD if self._has_begun else 0):  # training waits for the first batch
            new = {*ahead} - {*needed}
            if pool.stop >= end or len(new) >= min(SHARDS_AHEAD, self._num_shards - len({*needed})):
                break
            pool = self.order.pool_at(pool.stop)
            ahead += self.order.shards_of(pool, self._streams)
        self._open.keep(needed, ahead=ahead)
        self._has_begun = True

    def _gather(self, located: Located) -> tuple[Examples, NDArray[np.int64]]:
        """A copy of the rows, by shard, with their epochs' masks, and the index of each row in it.

        Epoch 0 has the stored masks, if neither a rate nor a function is given.
        """
        rate, masking = self._layout.masked_lm_prob, self._layout.masking
        total = len(located.rows)
        if not total:  # the last rows of an evaluation are all on other ranks
            return self._blank(0), located.rows
        is_redrawn = (located.epochs > 0) | (rate is not None or masking is not None)
        # Ascending rows, too: in random order, memory would be read at half the speed.
        order = np.argsort(is_redrawn.astype(np.int64) << 62 | located.shards << 32 | located.rows)
        index = np.empty_like(order)
        index[order] = np.arange(total)
        epochs, shards, rows = (x[order] for x in located)
        borders = np.flatnonzero(np.diff(shards)) + 1
        opened = [self._open[shard] for shard in shards[[0, *borders]].tolist()]
        examples = take_from_each(opened, np.split(rows, borders))
        stored = int(np.count_nonzero(~is_redrawn))
        if stored < total:
            redrawn = self._shards.remasked(
                examples.slice(stored, total),
                shards[stored:],
                rows[stored:],
                epochs[stored:],
                masked_lm_prob=rate,
                masking=masking,
            )
            parts = [examples.slice(0, stored), redrawn]
            examples = concatenate_examples(parts) if stored else redrawn
        return examples, index

    def _blank(self, rows: int) -> Examples:
        packed = self._shards.manifest.config.is_packed
        return blank_examples(rows, self._shards.pad_id, packed=packed)

    def _lengths(self, located: Located) -> NDArray[np.int64]:
        """Tokens of the rows, [n]."""
        lengths = np.empty(len(located.rows), dtype=np.int64)
        by_shard = np.argsort(located.shards, kind="stable")
        borders = np.flatnonzero(np.diff(located.shards[by_shard])) + 1
        for here in np.split(by_shard, borders):
            offsets = self._open[int(located.shards[here[0]])].input_ids.offsets
            rows = located.rows[here]
            lengths[here] = offsets[rows + 1] - offsets[rows]
        return lengths

    def _slab(
        self,
        examples: Examples,
        rows: NDArray[np.int64],
        hashes: UInt64Array,
        starts: NDArray[np.int64],
        end: int,
    ) -> list[LoadedBatch[Any]]:
        """The batches that begin at `starts` [K], of the given rows."""
        sums = np.stack([*_counts(examples, rows), hashes.view(np.int64)])  # [4, K * R]
        of_batches = sums.reshape(4, len(starts), -1).sum(axis=2)  # [4, K]
        stops = np.minimum(starts + self._slice.batch_size, end).tolist()
        slab = self._collate(examples, rows)
        return [
            LoadedBatch(
                batch=batch,
                next_position=stop,
                num_tokens=tokens,
                num_predictions=masks,
                num_pairs=pairs,
                digest=digest,
            )
            for batch, stop, (tokens, masks, pairs, digest) in zip(
                slab.split(len(starts)), stops, of_batches.T.tolist(), strict=True
            )
        ]

    def _collate(self, examples: Examples, rows: NDArray[np.int64]) -> Batch | UnpaddedBatch:
        widest = self._shards.max_seq_length
        data = config_at(self._shards.manifest.config, self._layout.masked_lm_prob)
        sizes = {"max_seq_length": widest, "max_predictions": data.predictions}
        if self._layout.unpadded:
            return collate_unpadded(examples, rows, **sizes)
        if self._layout.length_bins:
            longest = int(examples.input_ids.lengths[rows].max())
            sizes["max_seq_length"] = min(-(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, widest)
        return collate(examples, rows, **sizes, pad_id=self._shards.pad_id)


def _counts(examples: Examples, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Tokens, masked tokens, and whether there is a sentence B, for each row: three times [R]."""
    tokens, masks = examples.input_ids.offsets, examples.masked_lm_positions.offsets
    return [
        (tokens[rows + 1] - tokens[rows]) * (examples.length_a[rows] > 0),  # none in a blank row
        masks[rows + 1] - masks[rows],
        examples.next_sentence_label[rows] != NO_PAIR,
    ]
