"""What is wrong with a shard: one line per kind of problem, with the number of rows and the first.

rows whose A has no [SEP]: 3, the first at 812
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

Flags = NDArray[np.bool_]


class Findings:
    """The problems of a shard, by kind, in the order in which they were found."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int]] = {}
        self._others: list[str] = []

    def note(self, rows: NDArray[Any], problem: str, *, first: int = 0) -> None:
        """Add rows that have the problem: flags [R] or row numbers, counted from row `first`."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else np.unique(rows)
        if len(numbers):
            count, row = self._rows.get(problem, (0, int(numbers[0]) + first))
            self._rows[problem] = (count + len(numbers), min(row, int(numbers[0]) + first))

    def add(self, problem: str) -> None:
        """Add a problem of the shard as a whole."""
        self._others.append(problem)

    def lines(self) -> list[str]:
        rows = [f"{what}: {n:,}, the first at {row:,}" for what, (n, row) in self._rows.items()]
        return rows + self._others


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """The rows of a shard, what they are checked against, and what is wrong with them."""

    examples: Examples
    config: DataConfig
    tokenizer: Tokenizer
    split: str
    shard: int  #: its number in the split
    copies: int  #: how often the bucket may occur, each time with new pairs
    nothing_to_mask: int = 0  #: pairs dropped from the data set after balancing
    findings: Findings = field(default_factory=Findings)


def rows_with(flags: Flags, ragged: Ragged) -> NDArray[np.int64]:
    """The rows in which a value is flagged, each once."""
    return np.unique(np.searchsorted(ragged.offsets, np.flatnonzero(flags), side="right") - 1)


def differing_rows(one: Examples, two: Examples) -> NDArray[np.int64]:
    """The rows that are not the same in both, up to the end of the shorter one."""
    number = min(len(one), len(two))
    differs = np.zeros(number, dtype=bool)
    for name, a in one.columns().items():
        b = getattr(two, name)
        if isinstance(a, Ragged):
            same_length = a.lengths[:number] == b.lengths[:number]
            differs |= ~same_length
            rows = np.flatnonzero(same_length)
            a, b = (x if len(rows) == len(x) else x.take(rows) for x in (a, b))
            differs[rows[rows_with(a.values != b.values, a)]] = True
        else:
            differs |= a[:number] != b[:number]
    return np.flatnonzero(differs)
