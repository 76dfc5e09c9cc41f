"""Where stretches of tokens stand in a long text, for many stretches at once.

    text    the cat sat on the mat . the dog sat .
    [the]      ->  0, 4, 7        of these, the first in a given range for which a given test holds
    [sat .]    ->  9

The first tokens of each stretch (its gram, of 1, 2, 4, 8 or 16 tokens) are looked up in the grams
of the text. Grams are compared by a polynomial hash modulo 2**64, then the stretches themselves,
token by token: two that differ never pass for the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import GOLDEN, UInt64Array
from pipeline.common.ragged import Offsets, slice_indices

WIDEST = 16  # tokens of a gram
FACTOR = 0xD1342543DE82EF95  # odd, so that multiplying loses nothing
TABLE_BITS = 22  # of the table that tells which grams of the text are worth a closer look

Ids = NDArray[np.integer]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Spans:
    """N stretches [start, start + length) of the ids of a shard's rows."""

    ids: Ids  # [T], of the whole shard
    start: Offsets  # [N]
    length: Offsets  # [N], 1 or more

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: NDArray[np.int64]) -> "Spans":
        """The given stretches, in the given order."""
        return Spans(self.ids, self.start[rows], self.length[rows])


class SpanIndex:
    """Finds the places of stretches in `text`, the ids [T] of some documents.

    A stretch whose gram is narrower than `free_width` is looked for at `anchors` only, sorted
    places of the text; the others are looked for everywhere.
    """

    def __init__(self, text: Ids, stretches: Spans, *, anchors: Offsets, free_width: int) -> None:
        self._text = text
        self._stretches = stretches
        self._span = len(text) + 1
        self._ranks = np.zeros(len(stretches), dtype=np.int64)  # equal grams have equal ranks
        ranks, parts = 0, [np.zeros(0, np.int64)]
        widths = gram_widths(stretches.length)
        for width in np.unique(widths).tolist():
            mine = np.flatnonzero(widths == width)
            first = stretches.ids[stretches.start[mine, None] + np.arange(width)]
            wanted, rank = np.unique(_gram_keys(first, width)[:, 0], return_inverse=True)
            self._ranks[mine] = ranks + rank
            rank, position = _look_up(text, wanted, width, anchors if width < free_width else None)
            parts.append((ranks + rank) * self._span + position)
            ranks += len(wanted)
        self._entries = np.sort(np.concatenate(parts))  # by gram, then by place

    def first(
        self,
        which: NDArray[np.int64],
        low: Offsets,
        high: Offsets,
        holds: Callable[[NDArray[np.int64], Offsets], Flags],
    ) -> Offsets:
        """The first place in [low, high) at which each stretch stands and `holds`, or -1; [W].

        `which` [W] are indices of stretches, `low` and `high` [W] places. `holds` is asked about
        indices into `which` and a place for each, and may look for other stretches in its turn.
        """
        base = self._ranks[which] * self._span
        cursor = np.searchsorted(self._entries, base + np.maximum(low, 0))
        end = np.searchsorted(self._entries, base + np.clip(high, 0, self._span - 1))
        found = np.full(len(which), -1, dtype=np.int64)
        active = np.flatnonzero(cursor < end)
        while len(active):  # a round looks at one more place of each stretch that is not found
            position = self._entries[cursor[active]] - base[active]
            stands = self._equal(which[active], position)
            stands[stands] = holds(active[stands], position[stands])
            found[active[stands]] = position[stands]
            active = active[~stands]
            cursor[active] += 1
            active = active[cursor[active] < end[active]]
        return found

    def _equal(self, which: NDArray[np.int64], position: Offsets) -> Flags:
        """Whether the whole stretch stands there, token by token."""
        length = self._stretches.length[which]
        equal = position + length <= len(self._text)
        inside = np.flatnonzero(equal)
        length, start = length[inside], self._stretches.start[which[inside]]
        differs = (
            self._text[slice_indices(position[inside], length)]
            != self._stretches.ids[slice_indices(start, length)]
        )
        row = np.repeat(inside, length)
        equal[row[differs]] = False
        return equal


def gram_widths(lengths: Offsets) -> Offsets:
    """The widest gram in a stretch: the power of two at or below its length, WIDEST at most."""
    capped = np.minimum(lengths, WIDEST)
    widths = 1 << np.arange(WIDEST.bit_length())
    return widths[np.searchsorted(widths, capped, side="right") - 1]


def _gram_keys(ids: Ids, width: int) -> UInt64Array:
    """The key of ids[.., i : i + width] at each i; twice as wide from two that adjoin."""
    keys, reach, factor = ids.astype(np.uint64), 1, FACTOR
    while reach < width:
        keys = keys[..., :-reach] * np.uint64(factor) + keys[..., reach:]
        reach, factor = 2 * reach, factor * factor % (1 << 64)
    return keys


def _look_up(
    text: Ids, wanted: UInt64Array, width: int, anchors: Offsets | None
) -> tuple[Offsets, Offsets]:
    """Index into `wanted` (sorted) and place, of all grams of the text that are wanted."""
    if len(text) < width:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if anchors is None:
        keys = _gram_keys(text, width)
        position = np.flatnonzero(_table(wanted)[_slots(keys)])
        keys = keys[position]
    else:
        position = anchors[anchors <= len(text) - width]
        keys = _gram_keys(text[position[:, None] + np.arange(width)], width)[:, 0]
    rank = np.searchsorted(wanted, keys)
    rank[rank == len(wanted)] = 0
    is_wanted = wanted[rank] == keys
    return rank[is_wanted], position[is_wanted]


def _table(keys: UInt64Array) -> Flags:
    table = np.zeros(1 << TABLE_BITS, dtype=bool)
    table[_slots(keys)] = True
    return table


def _slots(keys: UInt64Array) -> UInt64Array:
    return (keys * GOLDEN) >> np.uint64(64 - TABLE_BITS)
