"""Scores of a classifier, from its confusion matrix, and of a regression: correlations.

              predicted 0   predicted 1
label 0            8             2          recall of 0     8 / 10
label 1            1             9          precision of 1  9 / 11

And the loss of logits at their best temperature T, the one by which they are divided (Guo et al.
2017, "On calibration of modern neural networks").
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from clozeline.train.labelled.rows import Floats, Rows

MOST_COLUMNS = 12  # classes whose confusion matrix is printed
MOST_STORED = 100  # classes whose confusion matrix is stored with its zeros
LOWEST, HIGHEST = 0.05, 20.0  # temperatures


@dataclass(frozen=True, eq=False)
class Scores:
    """The confusion matrix of C classes; 0 / 0 is 0.0, as in scikit-learn."""

    names: tuple[str, ...]  # [C]
    confusion: NDArray[np.int64]  # [C, C], row: label, column: prediction

    @classmethod
    def of(
        cls, names: Sequence[str], labels: NDArray[np.int64], predicted: NDArray[np.int64]
    ) -> Self:
        """From the label and the predicted class of each row, both int64 [N]."""
        count = len(names)
        pairs = np.bincount(labels * count + predicted, minlength=count * count)
        return cls(tuple(names), pairs.reshape(count, count).astype(np.int64))

    @property
    def examples(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        return float(_ratio(np.trace(self.confusion), self.confusion.sum()))

    @property
    def summary(self) -> str:
        return f"accuracy {self.accuracy:.4f}"

    @property
    def precision(self) -> Floats:
        """The fraction of the rows predicted as a class that belong to it, [C]."""
        return _ratio(np.diagonal(self.confusion), self.confusion.sum(0))

    @property
    def recall(self) -> Floats:
        """The fraction of the rows of a class that were predicted as it, [C]."""
        return _ratio(np.diagonal(self.confusion), self.confusion.sum(1))

    @property
    def f1(self) -> Floats:
        """The harmonic mean of precision and recall, [C]."""
        both = self.confusion.sum(0) + self.confusion.sum(1)
        return _ratio(2 * np.diagonal(self.confusion), both)

    @property
    def macro_f1(self) -> float:
        """The mean of F1 of the classes that labels or predictions have, as in scikit-learn."""
        return float(self.means["macro mean"][2])

    @property
    def means(self) -> dict[str, Floats]:
        """Precision, recall and F1, [3]: of the classes as in `macro_f1`, and weighted by rows.

        Those of scikit-learn's `classification_report`.
        """
        scores, rows = np.stack([self.precision, self.recall, self.f1]), self.confusion.sum(1)
        weights = {"macro mean": self.confusion.sum(0) + rows > 0, "weighted mean": rows}
        return {name: _ratio(scores @ of, np.full(3, of.sum())) for name, of in weights.items()}

    @property
    def matthews(self) -> float:
        """Matthews' correlation coefficient, for C classes (Gorodkin 2004); 0 if undefined."""
        counts = self.confusion.astype(np.float64)
        total, labels, predictions = counts.sum(), counts.sum(1), counts.sum(0)
        covariance = np.trace(counts) * total - labels @ predictions
        spread = (total**2 - labels @ labels) * (total**2 - predictions @ predictions)
        return float(_ratio(covariance, np.sqrt(spread)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `names` and `confusion` are enough to restore the object.

        Of more than 100 classes `confusion` has the cells that are not 0: [label, predicted, rows].
        """
        places, confusion = np.nonzero(self.confusion), self.confusion
        if len(self.names) > MOST_STORED:
            confusion = np.stack([*places, confusion[places]], axis=1)
        return {
            "names": list(self.names),
            "examples": self.examples,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "precision": dict(zip(self.names, self.precision.tolist(), strict=True)),
            "recall": dict(zip(self.names, self.recall.tolist(), strict=True)),
            "f1": dict(zip(self.names, self.f1.tolist(), strict=True)),
            "confusion": confusion.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        names, confusion = tuple(values["names"]), np.array(values["confusion"], dtype=np.int64)
        if len(names) > MOST_STORED:
            labels, predicted, rows = confusion.T
            confusion = np.zeros((len(names), len(names)), np.int64)
            confusion[labels, predicted] = rows
        return cls(names, confusion)

    def table(self) -> list[str]:
        """One line of text per class: its scores and, of few classes, its row of the matrix."""
        names = [_short(name) for name in self.names]
        is_wide = len(names) > MOST_COLUMNS
        predicted = "" if is_wide else f"   predicted {'  '.join(names)}"
        lines = [f"{'class':>12}  precision  recall      f1   rows{predicted}"]
        columns = zip(
            names, self.precision, self.recall, self.f1, self.confusion.tolist(), strict=True
        )
        for name, precision, recall, f1, counts in columns:
            shown = "  ".join(f"{n:>{len(to)}}" for n, to in zip(counts, names, strict=True))
            lines.append(
                f"{name:>12}  {precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {sum(counts):5}"
                + ("" if is_wide else f"             {shown}")
            )
        return lines


@dataclass(frozen=True, kw_only=True)
class Correlations:
    """How well predictions fit targets, as in GLUE's STS-B: in [-1, 1], 0 where all are equal."""

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
        return f"Pearson's correlation {self.pearson:.4f}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def scores_of(values: dict[str, Any]) -> Scores | Correlations:
    """Those of which `to_dict` gave the values."""
    return Scores.from_dict(values) if "confusion" in values else Correlations(**values)


def mean_in_words(values: Sequence[float], form: str) -> str:
    """The mean in this format, and of several values their deviation: "0.8410 ± 0.0120"."""
    mean = format(np.mean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {format(np.std(values, ddof=1), form)}"


def pearson(first: NDArray[Any], second: NDArray[Any]) -> float:
    """The linear correlation coefficient of two columns [N]."""
    first, second = (column - column.mean(dtype=np.float64) for column in (first, second))
    norm = np.sqrt((first * first).sum() * (second * second).sum())
    return float((first * second).sum() / norm) if norm > 0 else 0.0


def ranks(values: NDArray[Any]) -> Floats:
    """The rank of each value from 1 on; equal values share the mean of their ranks.

    10 30 20 20  ->  1 4 2.5 2.5
    """
    lowest, highest = (pc.rank(values, tiebreaker=way).to_numpy() for way in ("min", "max"))
    middle: Floats = (lowest + highest) / 2
    return middle


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """Probabilities [N, C] of logits [N, C] divided by a temperature."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    probabilities: Floats = powers / powers.sum(-1, keepdims=True)
    return probabilities


def log_loss(
    logits: ArrayLike, labels: Rows, temperature: float = 1.0, *, smoothing: float = 0.0
) -> float:
    """Mean cross-entropy in nats of logits [N, C] divided by a temperature.

    `smoothing` is the probability of the labels that goes to the other classes, in equal parts.
    """
    losses = -np.log(np.maximum(softmax(logits, temperature), 1e-300))  # [N, C]
    chosen = losses[np.arange(len(labels)), labels]
    others = (losses.sum(1) - chosen) / (losses.shape[1] - 1)
    return float(((1 - smoothing) * chosen + smoothing * others).mean())


def fit_temperature(logits: ArrayLike, labels: Rows) -> float:
    """The temperature at which the cross-entropy is lowest, in [0.05, 20].

    Labels are smoothed by 1 / (N + 2) as in Platt 1999, 2.2: where all of N rows are right, the
    confidence should be near (N + 1) / (N + 2), not 1. The loss is convex in 1 / T, so a
    golden-section search over log T finds the minimum.
    """
    smoothing = 1 / (len(labels) + 2)

    def loss(log_temperature: float) -> float:
        return log_loss(logits, labels, np.exp(log_temperature), smoothing=smoothing)

    ratio = (np.sqrt(5) - 1) / 2
    low, high = np.log(LOWEST), np.log(HIGHEST)
    while high - low > 1e-4:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def _ratio(part: Any, whole: Any) -> Floats:
    """part / whole, and 0 where whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    ratio: Floats = np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
    return ratio


def _short(name: str) -> str:
    name = " ".join(name.split())
    name = name if len(name) <= 12 else f"{name[:11]}…"
    return f"{name:>6}"
