"""Which rows of a global batch a rank has.

Of W ranks, rank r has the positions p = r mod W, and so reads C/W of the streams (`order.py`).
Padded ranks take equally long. Unpadded ones take as long as the rank with the most tokens, which
has 1.14 times the mean of 8 ranks and 1.23 times that of 64 (each 64 rows of up to 512 tokens of
Wikipedia, `tests/benchmarks/rank_balance.py`). They therefore deal their rows by length:

    lengths of the rows of two ranks   9 4 | 7 3   ->   9 3 | 4 7

A rank needs the lengths of all rows that are dealt, so it opens the shards of the others, too, but
gathers and masks its own rows alone. As the mean of many rows differs little from group to group,
groups of ranks that have 1,024 rows of a global batch of B are enough: the slowest rank has at most
1.03 times the mean, and opens 1,024 / B of the shards (all of them, where B is smaller) instead of
1 / W.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError

GROUP_ROWS = 1024  # of a global batch, at least, in a group of ranks that deal their rows


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
