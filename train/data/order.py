"""The order in which training reads the examples: a pure function of data set, seed and position.

Training reads one endless sequence. Position p is example p mod N of epoch p div N. An epoch
permutes the shards, groups them in that order into *pools* of about 65,536 rows, and permutes the
rows inside each pool:

    shards of 3, 2, 4 rows    shards permuted    pools (of >= 4 rows)       position 0 .. 8
    a0 a1 a2 | b0 b1 |   ->   c, a, b        ->  c0 c1 c2 c3 | a0 .. b1 ->  c2 c0 c3 c1 b1 a0 a2 ..
    c0 c1 c2 c3

So there is no shuffle buffer to fill or to save: any process finds any position in O(1) reads,
whatever the batch size. The price is that two examples can meet in a batch only if their shards
fall into the same pool. Documents are assigned to shards by hash, so a pool is already a random
sample of the corpus.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import UInt64Array, permutation, stream_key

ORDER_VERSION = 1  # a state of another version is refused: its run would be reordered
POOL_ROWS = 65_536  # of a new run; a resumed one keeps its own
POOL_TOKENS = POOL_ROWS * 512  # at most, in about 100 MB


@dataclass(frozen=True)
class Pool:
    """The shards that are in memory together, in this order."""

    epoch: int
    index: int  # within its epoch
    start: int  # the position of its first example
    shards: tuple[int, ...]
    rows: int


def pool_rows_for(max_seq_length: int) -> int:
    """The rows of a pool of a new run: 128 tokens -> 65,536, 8,192 tokens -> 4,096."""
    return min(POOL_ROWS, POOL_TOKENS // max_seq_length)


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
        pool_rows: int = POOL_ROWS,
    ) -> None:
        assert sum(shard_rows) > 0, "a sequence needs an example"
        self.shard_rows = list(shard_rows)
        self.epoch_rows = sum(shard_rows)  # N
        self._dataset = int(dataset_digest[:16], 16)
        self._seed = seed
        self._pool_rows = pool_rows if seed is not None else 1
        self._last_epoch: tuple[int, list[Pool]] = (-1, [])

    def pools(self, epoch: int) -> list[Pool]:
        """The pools of an epoch, in the order in which they are read; O(number of shards)."""
        known, pools = self._last_epoch
        if known != epoch:
            pools = self._group(epoch)
            self._last_epoch = (epoch, pools)
        return pools

    def pool_at(self, position: int) -> Pool:
        """The pool that holds a position."""
        pools = self.pools(position // self.epoch_rows)
        return pools[bisect_right(pools, position, key=lambda pool: pool.start) - 1]

    def rows(self, pool: Pool) -> NDArray[np.int64]:
        """The row read at each offset of a pool, [pool.rows], counted over its shards in order."""
        if self._seed is None:
            return np.arange(pool.rows)
        return permutation(self.key("rows", pool.epoch, pool.index), pool.rows)

    def locate(self, positions: NDArray[np.int64]) -> Iterator[tuple[Pool, NDArray[np.int64]]]:
        """Ascending positions, split by pool: each pool and the offsets that are read in it."""
        while len(positions):
            pool = self.pool_at(int(positions[0]))
            inside = int(np.searchsorted(positions, pool.start + pool.rows))
            yield pool, positions[:inside] - pool.start
            positions = positions[inside:]

    def key(self, what: str, *scope: int) -> UInt64Array:
        """The random key for one purpose; stored order (`seed` None) has none."""
        assert self._seed is not None
        return stream_key(self._seed, f"order/{what}", self._dataset, *scope)

    def _group(self, epoch: int) -> list[Pool]:
        pools: list[Pool] = []
        start = epoch * self.epoch_rows
        for shards in self._groups(epoch):
            rows = sum(self.shard_rows[shard] for shard in shards)
            pools.append(Pool(epoch, len(pools), start, tuple(shards), rows))
            start += rows
        return pools

    def _groups(self, epoch: int) -> list[list[int]]:
        groups: list[list[int]] = [[]]
        rows = 0
        for shard in self._shards(epoch):
            if rows >= self._pool_rows:
                groups.append([])
                rows = 0
            groups[-1].append(shard)
            rows += self.shard_rows[shard]
        if len(groups) > 1 and 2 * rows < self._pool_rows:
            small = groups.pop()  # too few rows for a pool
            groups[-1] += small
        return groups

    def _shards(self, epoch: int) -> list[int]:
        filled = np.flatnonzero(self.shard_rows)
        if self._seed is not None:
            filled = filled[permutation(self.key("shards", epoch), len(filled))]
        return filled.tolist()
