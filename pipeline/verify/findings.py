"""What is wrong with a shard: each kind of fault is one line, with how many rows and the first."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.common.ragged import Ragged

Flags = NDArray[np.bool_]


class Findings:
    """What was found, how often, and in which row first; one line each."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int]] = {}
        self._others: list[str] = []

    def note(self, rows: NDArray[Any], what: str, *, first: int = 0) -> None:
        """Count the rows of which `what` holds: flags, or numbers; `first` is that of the first."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else np.unique(rows)
        if len(numbers):
            count, row = self._rows.get(what, (0, int(numbers[0]) + first))
            self._rows[what] = (count + len(numbers), min(row, int(numbers[0]) + first))

    def say(self, what: str) -> None:
        """A fault of the shard as a whole."""
        self._others.append(what)

    def lines(self) -> list[str]:
        """`what: how many, the first at row`, in the order of finding."""
        rows = [f"{what}: {n:,}, the first at {row:,}" for what, (n, row) in self._rows.items()]
        return rows + self._others


def rows_with(flags: Flags, ragged: Ragged) -> NDArray[np.int64]:
    """The rows in which a value is flagged, each once."""
    return np.unique(np.searchsorted(ragged.offsets, np.flatnonzero(flags), side="right") - 1)
