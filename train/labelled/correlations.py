"""Scores of a regression: the correlation of predictions with targets, as in GLUE's STS-B."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Correlations:
    """Correlation coefficients in [-1, 1]; 0 if all predictions or all targets are equal."""

    examples: int
    pearson: float
    spearman: float

    @classmethod
    def of(cls, targets: NDArray[Any], predicted: NDArray[Any]) -> Self:
        """From the target and the prediction of each row, [N]."""
        return cls(
            examples=len(targets),
            pearson=pearson(targets, predicted),
            spearman=pearson(ranks(targets), ranks(predicted)),
        )

    @property
    def summary(self) -> str:
        """The first of the scores as text."""
        return f"Pearson's correlation {self.pearson:.4f}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON stores it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """From what `to_dict` gave."""
        return cls(**values)


def pearson(first: NDArray[Any], second: NDArray[Any]) -> float:
    """The linear correlation coefficient of two columns [N]."""
    first, second = (column - column.mean(dtype=np.float64) for column in (first, second))
    norm = np.sqrt((first * first).sum() * (second * second).sum())
    return float((first * second).sum() / norm) if norm > 0 else 0.0


def ranks(values: NDArray[Any]) -> Floats:
    """The rank of each value from 1 on; equal values share the mean of their ranks.

    10 30 20 20  ->  1 4 2.5 2.5
    """
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: Floats = (last - (counts - 1) / 2)[index]
    return found
