"""The order in which training reads the examples: a pure function of data set, seed and position.

Training reads one endless sequence. Position p is one of the N examples of epoch p div N. An epoch
permutes the shards, cuts their rows, in that order, into C equal *streams*, and shuffles each;
position p takes the next row of stream p mod C. With N = 9 and C = 3:

    shards permuted       streams       shuffled      position 0 .. 8
    a0 a1 a2 | b0 b1 |    0  a0 a1 a2   0  a1 a0 a2   a1 b0 c3 a0 c0 c2 a2 b1 c1
    c0 c1 c2 c3           1  b0 b1 c0   1  b0 c0 b1
                          2  c1 c2 c3   2  c3 c2 c1

So a process that takes every W-th position reads C/W of the streams, and no other shards, if C is
divisible by W. (Otherwise it reads more of them, in the same order.) A long stream is shuffled in
windows; the windows of all streams at one time form a *pool* of 262,144 rows or more (fewer of more
than 512 tokens), which lie in C places of the permuted shards.

There is no shuffle buffer to fill or to save: any process finds any position in O(1) reads,
whatever the batch size. Documents are assigned to shards by hash, so that a stream is already a
random sample of the corpus.

Two streams share the shard at their border, which is read twice: C is so small that a stream has
8 shards.

Of a global batch and W ranks, rank r has the positions p = r mod W. Padded ranks take equally long.
Unpadded ones take as long as the rank with the most tokens, which has 1.14 times the mean of 8
ranks and 1.23 times that of 64 (each 64 rows of up to 512 tokens of Wikipedia,
`tests/benchmarks/rank_balance.py`). They therefore deal their rows by length:

    lengths of the rows of two ranks   9 4 | 7 3   ->   9 3 | 4 7

A rank needs the lengths of all rows that are dealt, so it opens the shards of the others, too, but
gathers and masks its own rows alone. As the mean of many rows differs little from group to group,
groups of ranks that have 1,024 rows of a global batch of B are enough: the slowest rank has at most
1.03 times the mean, and opens 1,024 / B of the shards (all of them, where B is smaller) instead of
1 / W.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import (
    GOLDEN,
    UInt64Array,
    mix64,
    permutation,
    stream_key,
)
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Offsets, offsets_of

ORDER_VERSION = 2
STREAMS = 64  # streams of an epoch, at most
SHARDS_PER_STREAM = 8  # at least: of 8 shards, 1 more is read at the border
ROWS_PER_BIN = 32  # of a stream, at least: bins of fewer rows have unequal lengths
POOL_ROWS = 262_144  # of a new run; a resumed one keeps its own
POOL_TOKENS = POOL_ROWS * 512  # at most
GROUP_ROWS = 1024  # of a global batch, at least, in a group of ranks that deal their rows


class Located(NamedTuple):
    """Where the examples at some positions are stored, int64 [n] each."""

    epochs: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]  # within the shard


@dataclass(frozen=True)
class Pool:
    """The positions from `start` to `stop`, whose rows are shuffled within their streams."""

    epoch: int
    index: int  # within its epoch
    start: int
    stop: int


@dataclass(frozen=True)
class _Epoch:
    number: int
    start: int  # the position of its first example
    shards: NDArray[np.int64]  # those with rows, permuted
    offsets: Offsets  # where each of them begins, and N
    starts: Offsets  # [C + 1] where each stream begins, and N
    edges: list[int]  # of the pools, in turns: a turn takes one row of each stream


def pool_rows_for(max_seq_length: int) -> int:
    """The rows of a pool of a new run: 128 tokens -> 262,144, 8,192 tokens -> 16,384."""
    return min(POOL_ROWS, POOL_TOKENS // max_seq_length)


def streams_for(shards: int, *, binned_batch: int | None = None) -> int:
    """C of a new run: 1,000 shards -> 64, 100 shards -> 8, 10 shards -> 1; a power of two.

    With length bins (of batches of `binned_batch` examples), every batch has equally many rows of
    each stream: 1,000 shards, 256 examples -> 8.
    """
    most = min(STREAMS, shards // SHARDS_PER_STREAM)
    if binned_batch:
        divisor = binned_batch & -binned_batch  # the largest power of two that divides it
        most = min(most, divisor, binned_batch // ROWS_PER_BIN)
    return 1 << max(most, 1).bit_length() - 1


class Order:
    """The endless sequence over shards with the given numbers of rows.

    With `seed` None rows come in stored order, one pool per shard.
    """

    def __init__(
        self,
        shard_rows: Sequence[int],
        *,
        dataset_digest: str,
        seed: int | None,
        streams: int = 1,
        pool_rows: int = POOL_ROWS,
    ) -> None:
        assert sum(shard_rows) > 0, "a sequence needs an example"
        assert streams == 1 or seed is not None
        self.shard_rows = np.array(shard_rows)
        self.epoch_rows = sum(shard_rows)  # N
        self.streams = streams  # C
        self._dataset = int(dataset_digest[:16], 16)
        self._seed = seed
        self.pool_rows = pool_rows if seed is not None else 1  # at least, if there are that many
        self._epoch = lru_cache(3)(self._build_epoch)
        self._window = lru_cache(3 * streams)(self._build_window)  # those of three pools

    def locate(self, positions: NDArray[np.int64]) -> Located:
        """Where the examples at the positions are stored; the positions may be in any order."""
        epochs = positions // self.epoch_rows
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(epochs).tolist():
            epoch, here = self._epoch(number), np.flatnonzero(epochs == number)
            row_numbers = self._rows_of_epoch(epoch, positions[here])
            index = np.searchsorted(epoch.offsets, row_numbers, side="right") - 1
            shards[here], rows[here] = epoch.shards[index], row_numbers - epoch.offsets[index]
        return Located(epochs, shards, rows)

    def pool_at(self, position: int) -> Pool:
        """The pool that holds a position."""
        epoch = self._epoch(position // self.epoch_rows)
        turn = (position - epoch.start) // self.streams
        index = bisect_right(epoch.edges, turn) - 1
        start, stop = (
            epoch.start + min(edge * self.streams, self.epoch_rows)
            for edge in epoch.edges[index : index + 2]
        )
        return Pool(epoch.number, index, start, stop)

    def shards_of(self, pool: Pool, streams: NDArray[np.int64]) -> list[int]:
        """The shards with rows of a pool in some of the streams, in the epoch's order."""
        epoch = self._epoch(pool.epoch)
        begin, end = self._window_bounds(epoch, pool.index, streams)
        has_rows = begin < end
        first = np.searchsorted(epoch.offsets, begin[has_rows], side="right") - 1
        last = np.searchsorted(epoch.offsets, end[has_rows], side="left")
        is_read = np.zeros(len(epoch.shards) + 1, dtype=np.int64)
        np.add.at(is_read, first, 1)
        np.add.at(is_read, last, -1)
        shards: list[int] = epoch.shards[np.cumsum(is_read)[:-1] > 0].tolist()
        return shards

    @np.errstate(over="ignore")  # arithmetic modulo 2**64
    def hashes(self, located: Located, positions: NDArray[np.int64]) -> UInt64Array:
        """A 64-bit hash of which example is read at each position, and of its epoch, [n]."""
        hashes = mix64(stream_key(0, "data digest", self._dataset) + positions.astype(np.uint64))
        for column in located:
            hashes = mix64(hashes + column.astype(np.uint64) + GOLDEN)
        return hashes

    def key(self, what: str, *scope: int) -> UInt64Array:
        """The random key for one purpose; stored order (`seed` None) has none."""
        assert self._seed is not None
        return stream_key(self._seed, f"order/{what}", self._dataset, *scope)

    def _rows_of_epoch(self, epoch: _Epoch, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row read at each position of an epoch, counted over its permuted shards, [n]."""
        if self._seed is None:
            return positions - epoch.start
        turns = (positions - epoch.start) // self.streams
        pools = np.searchsorted(epoch.edges, turns, side="right") - 1
        windows = pools * self.streams + positions % self.streams
        by_window = np.argsort(windows, kind="stable")
        borders = np.flatnonzero(np.diff(windows[by_window])) + 1
        row_numbers = np.empty_like(positions)
        for here in np.split(by_window, borders):
            pool, stream = divmod(int(windows[here[0]]), self.streams)
            rows = self._window(epoch.number, pool, stream)
            row_numbers[here] = rows[turns[here] - epoch.edges[pool]]
        return row_numbers

    def _build_window(self, epoch: int, pool: int, stream: int) -> NDArray[np.int64]:
        """The rows of one stream in a pool, in reading order."""
        begin, end = self._window_bounds(self._epoch(epoch), pool, np.array([stream]))
        return begin + permutation(self.key("rows", epoch, pool, stream), int(end[0] - begin[0]))

    def _window_bounds(
        self, epoch: _Epoch, pool: int, streams: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first row of each stream in a pool, and the one after its last."""
        stops = epoch.starts[streams + 1]
        begin, end = (
            np.minimum(epoch.starts[streams] + epoch.edges[index], stops)
            for index in (pool, pool + 1)
        )
        return begin, end

    def _build_epoch(self, number: int) -> _Epoch:
        start = number * self.epoch_rows
        shards = np.flatnonzero(self.shard_rows)
        if self._seed is not None:
            shards = shards[permutation(self.key("shards", number), len(shards))]
        offsets = offsets_of(self.shard_rows[shards])
        # A stream has a row for each of the epoch's positions that are its number mod C.
        least, more = divmod(self.epoch_rows, self.streams)
        sizes = least + ((np.arange(self.streams) - start) % self.streams < more)
        edges = offsets.tolist()
        if self._seed is not None:
            turns = -(-self.epoch_rows // self.streams)
            pools = max(turns // -(-self.pool_rows // self.streams), 1)
            edges = [turns * index // pools for index in range(pools + 1)]
        return _Epoch(number, start, shards, offsets, offsets_of(sizes), edges)


def assign_bins(
    lengths: NDArray[np.int64],
    *,
    start: int,
    epoch_rows: int,
    batch_size: int,
    key: UInt64Array,
    streams: int = 1,
    stream: int = 0,
) -> NDArray[np.int64]:
    """The rows of one stream in each batch of a window, [bins, batch_size / streams], ascending.

    A window's rows are sorted by length and cut into one bin for each batch, in random order:

        lengths in a window of 3 batches      bins               batches
        9 4 | 7 3 | 4 8                   ->  3 4 | 4 7 | 9 8 -> 4 7 | 9 8 | 4 3

    `lengths` are those of the rows at positions stream, stream + streams, ... from `start` on, the
    beginning of a batch; `streams` divides the batch size. A row is the index of its length. The
    result is a pure function of the arguments.
    """
    in_batch = batch_size // streams
    slots = stream + streams * np.arange(len(lengths))  # in the window
    end = len(lengths) * streams
    assigned = np.empty(len(lengths), dtype=np.int64)
    first = -(-start // epoch_rows) * epoch_rows - start  # the first slot of the next epoch
    borders = range(first or epoch_rows, end, epoch_rows)
    for begin, stop in zip((0, *borders), (*borders, end), strict=True):
        # Batches that lie within the epoch, and the slots before them, of a batch begun earlier.
        first_batch, batches_end = -(-begin // batch_size), stop // batch_size
        low, head, high = np.searchsorted(
            slots, (begin, min(first_batch * batch_size, stop), stop)
        ).tolist()
        whole = max(batches_end - first_batch, 0)
        by_length = low + np.argsort(lengths[low:high], kind="stable")
        bins = by_length[: whole * in_batch].reshape(whole, in_batch)[permutation(key, whole)]
        longest = by_length[whole * in_batch :]
        parts = longest[: head - low], bins.ravel(), longest[head - low :]
        assigned[low:high] = np.concatenate(parts)
    return np.sort(assigned.reshape(-1, in_batch), axis=1)


@dataclass(frozen=True)
class RankSlice:
    """One rank's part of each global batch: of W ranks, rank r has the positions p = r mod W.

    So a rank stays with its streams of the order, whatever the batch size. Raises InputError for
    a batch size that the number of processes does not divide.
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
        """Examples in the rank's part."""
        return self.batch_size // self.world_size

    @property
    def group(self) -> range:
        """The ranks that deal their rows, this one included: fewest that have GROUP_ROWS."""
        sizes = (n for n in range(1, self.world_size) if self.world_size % n == 0)
        size = next((n for n in sizes if n * self.rows >= GROUP_ROWS), self.world_size)
        first = self.rank - self.rank % size
        return range(first, first + size)

    def positions(self, starts: NDArray[np.int64], ranks: range | None = None) -> NDArray[np.int64]:
        """The positions of the rank, or of several, in the batches that begin at `starts` [K].

        Rank 1 of 2 in batches of 4 from 0 and 7 on: [[1, 3], [7, 9]]. Shape [K, ranks * rows].
        """
        of_ranks = np.array([self.rank] if ranks is None else ranks)
        first = starts[:, None] + (of_ranks - starts[:, None]) % self.world_size
        positions = first[..., None] + self.world_size * np.arange(self.rows)
        return positions.reshape(len(starts), -1)


def deal(lengths: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """The rank of each row of K batches by length [K, N]: N / ranks rows each, as many tokens.

        9 4 7 3, 2 ranks  ->  0 1 1 0

    The longest rows are dealt first, one to each rank, the longest of them to the rank with the
    fewest tokens; so no two ranks differ by more than the longest and the shortest row do.
    """
    dealt, tokens = np.empty_like(lengths), np.zeros((len(lengths), ranks), dtype=np.int64)
    by_length = np.argsort(-lengths, axis=1, kind="stable")
    for rows in np.split(by_length, lengths.shape[1] // ranks, axis=1):
        fewest = np.argsort(tokens, axis=1, kind="stable")
        np.put_along_axis(dealt, rows, fewest, axis=1)
        more = np.take_along_axis(tokens, fewest, 1) + np.take_along_axis(lengths, rows, 1)
        np.put_along_axis(tokens, fewest, more, axis=1)
    return dealt
