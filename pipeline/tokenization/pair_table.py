"""A table from pairs of numbers to numbers that answers for whole columns at once.

PairTable({(7, 1): 30, (7, 2): 31})[[7, 7, 8], [1, 9, 1]]  ->  [30, -1, -1]

Open addressing with linear probing: a quarter of the slots is used, so most answers come from the
first one, for all pairs in a few passes of NumPy.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int32]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio (Knuth, vol. 3, section 6.4)
EMPTY = np.uint64(2**64 - 1)


class PairTable:
    """Pairs of numbers from 0 to 2^31 - 1, and a number of that range for each."""

    def __init__(self, values: Mapping[tuple[int, int], int]) -> None:
        pairs = np.array(list(values), np.int32).reshape(-1, 2)
        keys, slots = _keys(pairs[:, 0], pairs[:, 1]), max(16, 4 * len(pairs))
        self._shift = np.uint64(64 - slots.bit_length())
        self._last = (1 << slots.bit_length()) - 1
        self._keys = np.full(self._last + 1, EMPTY)
        self._values = np.full(self._last + 1, -1, np.int32)
        numbers = np.fromiter(values.values(), np.int32, len(pairs))
        slot = self._slots(keys)
        while len(keys):
            free = self._keys[slot] == EMPTY
            self._keys[slot[free]] = keys[free]  # of several, the last one gets the slot
            placed = self._keys[slot] == keys
            self._values[slot[placed]] = numbers[placed]
            keys, numbers, slot = (column[~placed] for column in (keys, numbers, slot))
            slot = slot + 1 & self._last

    def __getitem__(self, pairs: tuple[Column, Column]) -> Column:
        """The number of each pair, or -1."""
        keys = _keys(*pairs)
        slot = self._slots(keys)
        there = self._keys[slot]
        found = self._values[slot]
        rest = np.flatnonzero(there != keys)
        found[rest] = -1
        rest = rest[there[rest] != EMPTY]
        while len(rest):
            slot[rest] = slot[rest] + 1 & self._last
            there = self._keys[slot[rest]]
            hits = rest[there == keys[rest]]
            found[hits] = self._values[slot[hits]]
            rest = rest[(there != keys[rest]) & (there != EMPTY)]
        return found

    def _slots(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (keys * MULTIPLIER >> self._shift).astype(np.int64)


def _keys(left: Column, right: Column) -> NDArray[np.uint64]:
    return left.astype(np.uint64) << np.uint64(32) | right.astype(np.uint64)
