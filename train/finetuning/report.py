"""The fine-tuning report: scores of the classifier and of the models it is compared with.

cells, the classifier's test logits  ->  lines for a terminal, report.json, figures
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Self

import numpy as np

from clozeline.train.finetuning.cells import SHOWN, Cell, CellKey, Start
from clozeline.train.finetuning.figure import draw_label_efficiency
from clozeline.train.finetuning.training import Logits
from clozeline.train.labelled.calibration import Calibration, softmax
from clozeline.train.labelled.duplicates import near_duplicates
from clozeline.train.labelled.rows import Labelled, class_ids
from clozeline.train.labelled.scores import Scores

MISTAKES = 10  # how many are listed, the most confident first
SHOWN_TEXT = 300  # characters of a text
IMBALANCE = 3  # a class with this many times the rows of another is worth a note


@dataclass(frozen=True, kw_only=True)
class Point:
    """One model trained on `examples` rows: its accuracy for each seed."""

    start: Start
    examples: int
    accuracies: tuple[float, ...]  # one per seed
    also: dict[str, tuple[float, ...]]  # on other test sets, by source

    @property
    def mean(self) -> float:
        """Mean accuracy on the test rows over the seeds."""
        return self.mean_on(None)

    @property
    def deviation(self) -> float:
        """Sample standard deviation over the seeds; 0 for a single seed."""
        return self.deviation_on(None)

    def mean_on(self, source: str | None) -> float:
        """Like `mean`, on another test set; None: on the test rows."""
        return float(np.mean(self.accuracies_on(source)))

    def deviation_on(self, source: str | None) -> float:
        """Like `deviation`, on another test set; None: on the test rows."""
        found = self.accuracies_on(source)
        return float(np.std(found, ddof=1)) if len(found) > 1 else 0.0

    def accuracies_on(self, source: str | None) -> tuple[float, ...]:
        """The accuracy of each seed on another test set; None: on the test rows."""
        return self.accuracies if source is None else self.also[source]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A test row that the classifier got wrong."""

    row: int  # from 1
    text: str  # its beginning
    label: str
    predicted: str
    confidence: float  # probability of the predicted class


@dataclass(frozen=True, kw_only=True)
class FinetuneReport:
    """The result of a call to `finetune`."""

    is_new: bool  # False: there was nothing to do
    cells: tuple[Cell, ...]
    chosen: CellKey  # the cell that became the classifier
    calibration: Calibration
    mistakes: tuple[Mistake, ...]  # the most confident first
    class_counts: dict[str, int]  # training rows
    near_copies: int  # test rows that have a near copy among the training rows
    notes: tuple[str, ...]  # what the user should know
    sources: dict[str, str | None]  # RUN, TRAIN and --test as given, for the record

    @property
    def finetuned(self) -> Cell:
        """The result of the classifier."""
        return next(cell for cell in self.cells if cell.key == self.chosen)

    def scores(self, start: Start) -> Scores | None:
        """Scores of a model trained on all rows (chosen or first seed); None if not trained."""
        found = (c for c in self.cells if (c.key.start, c.key.examples) == (start, self.rows))
        cell = self.finetuned if start == "pretrained" else next(found, None)
        return cell.scores if cell else None

    @property
    def rows(self) -> int:
        """The number of training rows."""
        return self.chosen.examples

    def points(self) -> list[Point]:
        """The accuracies over seeds, by number of rows, then by model as in SHOWN."""
        order = list(SHOWN)
        cells = sorted(self.cells, key=lambda c: (c.key.examples, order.index(c.key.start)))
        points = []
        for (examples, start), group in groupby(cells, lambda c: (c.key.examples, c.key.start)):
            of_seeds = list(group)
            also = {
                source: tuple(cell.also[source].accuracy for cell in of_seeds)
                for source in of_seeds[0].also
            }
            accuracies = tuple(cell.scores.accuracy for cell in of_seeds)
            points.append(Point(start=start, examples=examples, accuracies=accuracies, also=also))
        return points

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as report.json stores them."""
        others: tuple[Start, ...] = ("from_scratch", "bag_of_words")
        scores = {start: self.scores(start) for start in others}
        selection = self.finetuned.selection
        assert selection is not None  # it is fine-tuned
        return {
            **self.sources,
            "examples": self.rows,
            "seed": self.chosen.seed,
            "plan": asdict(selection.plan),
            "finetuned": self.finetuned.scores.to_dict(),
            **{name: found.to_dict() if found else None for name, found in scores.items()},
            "label_efficiency": [
                {**asdict(point), "mean": point.mean, "deviation": point.deviation}
                for point in self.points()
            ],
            "calibration": self.calibration.to_dict(),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
            "class_counts": self.class_counts,
            "near_copies": self.near_copies,
            "notes": list(self.notes),
            "cells": [cell.to_dict() for cell in self.cells],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The report of a finished folder."""
        return cls(
            is_new=False,
            cells=tuple(map(Cell.from_dict, values["cells"])),
            chosen=CellKey(start="pretrained", examples=values["examples"], seed=values["seed"]),
            calibration=Calibration.from_dict(values["calibration"]),
            mistakes=tuple(Mistake(**mistake) for mistake in values["mistakes"]),
            class_counts=values["class_counts"],
            near_copies=values["near_copies"],
            notes=tuple(values["notes"]),
            sources={name: values[name] for name in ("run", "train", "test")},
        )

    def lines(self) -> list[str]:
        """For a terminal: the classes, the compared models, label efficiency, calibration."""
        cell, calibration = self.finetuned, self.calibration
        assert cell.selection is not None  # it is fine-tuned
        points = self.points()
        return [
            *cell.scores.table(),
            "",
            *(f"{SHOWN[p.start]:>20}  {_accuracy(p)}" for p in points if p.examples == self.rows),
            *label_efficiency_table(points),
            "",
            f"chosen on training rows: {cell.selection.line()}",
            f"calibration error {calibration.error_before:.4f}, {calibration.error:.4f} at "
            f"temperature {calibration.temperature:.2f}",
            f"{self.near_copies:,} of {cell.scores.examples:,} test rows have a near copy among "
            "the training rows",
            *(f"note: {note}" for note in self.notes),
        ]

    def figures(self) -> dict[str, bytes]:
        """The curve as SVG and PNG by file name; empty for a single size or without matplotlib."""
        points = self.points()
        if len({point.examples for point in points}) < 2 or not has_matplotlib():
            return {}
        return {
            f"label_efficiency.{kind}": draw_label_efficiency(points, kind=kind)
            for kind in ("svg", "png")
        }


def summarize(
    cells: Sequence[Cell],
    best: Cell,
    logits: Logits,
    *,
    train: Labelled,
    test: Labelled,
    notes: Sequence[str],
    sources: dict[str, str | None],
) -> FinetuneReport:
    """The report of finished cells and of the classifier's logits for the test rows, [N, C]."""
    assert best.selection is not None  # it is fine-tuned
    names = best.scores.names
    temperature = best.selection.held_out.temperature
    counts = Counter(train.labels)
    class_counts = {name: counts[name] for name in names}
    notes = [*notes, *_imbalance(class_counts)]
    if len({cell.key.examples for cell in cells}) > 1 and not has_matplotlib():
        notes.append("no figure was drawn: matplotlib is not installed.")
    labels = class_ids(test, names)
    is_near_copy = near_duplicates(test.texts.joined(), train.texts.joined())
    return FinetuneReport(
        is_new=True,
        cells=tuple(cells),
        chosen=best.key,
        calibration=Calibration.of(logits, labels, temperature=temperature),
        mistakes=tuple(_mistakes(softmax(logits, temperature), labels, names, test)),
        class_counts=class_counts,
        near_copies=int(is_near_copy.sum()),
        notes=tuple(notes),
        sources=sources,
    )


def label_efficiency_table(points: Sequence[Point]) -> list[str]:
    """Mean and deviation in percent, a line per number of rows; empty for a single one."""
    sizes = sorted({point.examples for point in points})
    if len(sizes) < 2:
        return []
    starts = [start for start in SHOWN if any(point.start == start for point in points)]
    by_key = {(point.examples, point.start): point for point in points}
    lines = []
    for source in (None, *points[0].also):
        title = f"accuracy on {source}, %" if source else "accuracy, %"
        lines += ["", title, "      rows" + "".join(f"{SHOWN[start]:>16}" for start in starts)]
        for size in sizes:
            cells = (_percent(by_key[size, start], source) for start in starts)
            lines.append(f"{size:>10,}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    return find_spec("matplotlib") is not None


def _accuracy(point: Point) -> str:
    seeds = len(point.accuracies)
    line = f"accuracy {point.mean:.4f}"
    line += f" ± {point.deviation:.4f} ({seeds} seeds)" if seeds > 1 else ""
    others = (f"{point.mean_on(source):.4f} on {source}" for source in point.also)
    return ", ".join([line, *others])


def _percent(point: Point, source: str | None) -> str:
    mean, deviation = 100 * point.mean_on(source), 100 * point.deviation_on(source)
    return f"{mean:.1f} ± {deviation:.1f}" if len(point.accuracies) > 1 else f"{mean:.1f}"


def _imbalance(class_counts: dict[str, int]) -> list[str]:
    most, least = (find(class_counts, key=class_counts.__getitem__) for find in (max, min))
    if class_counts[most] < IMBALANCE * class_counts[least]:
        return []
    return [
        f"classes are imbalanced: {class_counts[most]:,} training rows are {most!r}, "
        f"{class_counts[least]:,} are {least!r}; --class-weights balanced weighs them equally."
    ]


def _mistakes(
    probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str], test: Labelled
) -> list[Mistake]:
    predicted, confidence = probabilities.argmax(1), probabilities.max(1)
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]
    texts = test.texts.take(wrong).joined()
    return [
        Mistake(
            row=int(row) + 1,
            text=text if len(text) <= SHOWN_TEXT else f"{text[: SHOWN_TEXT - 1]}…",
            label=names[labels[row]],
            predicted=names[predicted[row]],
            confidence=float(confidence[row]),
        )
        for row, text in zip(wrong, texts, strict=True)
    ]
