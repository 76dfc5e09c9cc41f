"""CLASSIFIER/predictions.csv: what a classifier says about each test row, with the whole text.

    row,label,predicted,confidence,P(bad),P(good),text
    1,good,good,0.973100,0.026900,0.973100,A fine lamp.
    2,good,bad,0.801200,0.801200,0.198800,"I wanted to love it,
    and I do."

The texts of a pair are joined by a line end.
"""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.train.labelled.labels import class_ids
from clozeline.train.labelled.rows import Floats, Labelled, Rows

PREDICTIONS = "predictions.csv"
HEAD = ("row", "label", "predicted", "confidence")  # before the probabilities and the text


@dataclass(frozen=True, eq=False)
class Predictions:
    """N test rows and C classes."""

    names: tuple[str, ...]  # [C]
    labels: Rows  # [N], numbers of classes
    probabilities: Floats  # [N, C]
    texts: Sequence[str]  # [N]
    predicted: Rows  # [N], the most probable classes; the file rounds the probabilities

    @classmethod
    def of(cls, test: Labelled, names: Sequence[str], probabilities: Floats) -> Self:
        """From the test rows and the classifier's probabilities for them."""
        labels, predicted = class_ids(test, names), probabilities.argmax(1)
        return cls(tuple(names), labels, probabilities, test.texts.joined(), predicted)

    @property
    def confidence(self) -> Floats:
        """The probability of the predicted class, [N]."""
        confidence: Floats = self.probabilities.max(1)
        return confidence

    def csv(self) -> str:
        """The content of the file."""
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow([*HEAD, *(f"P({name})" for name in self.names), "text"])
        predicted, confidence = self.predicted, self.confidence
        for row in range(len(self.texts)):
            names = (self.names[self.labels[row]], self.names[predicted[row]])
            numbers = (confidence[row], *self.probabilities[row])
            writer.writerow([row + 1, *names, *(f"{p:.6f}" for p in numbers), self.texts[row]])
        return file.getvalue()

    @classmethod
    def read(cls, path: Path) -> Self:
        """From the file with all rows. Raises InputError where it cannot be read."""
        csv.field_size_limit(sys.maxsize)  # a text has no limit
        try:
            with path.open(encoding="utf-8", newline="") as file:
                head, *lines = csv.reader(file)
            first, last = len(HEAD), len(head) - 1
            names = tuple(name[2:-1] for name in head[first:last])
            return cls(
                names,
                np.array([names.index(line[1]) for line in lines], np.int64),
                np.array([line[first:last] for line in lines], np.float64),
                [line[last] for line in lines],
                np.array([names.index(line[2]) for line in lines], np.int64),
            )
        except (OSError, ValueError, IndexError, csv.Error) as error:
            raise InputError(
                f"{path} cannot be read ({error}); make it again with `clozeline finetune`."
            ) from error
