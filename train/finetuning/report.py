"""The fine-tuning report: scores of the classifier and of the models it is compared with.

results, the classifier's test logits  ->  lines for a terminal, report.json, figures
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from clozeline.train.config import Truncate
from clozeline.train.finetuning.job import Job
from clozeline.train.finetuning.label_efficiency import (
    Point,
    draw_label_efficiency,
    label_efficiency_table,
    points_of,
)
from clozeline.train.finetuning.results import SHOWN, ModelKey, ModelResult
from clozeline.train.finetuning.training_loop import Logits
from clozeline.train.labelled.calibration import Calibration
from clozeline.train.labelled.encoding import ends_of
from clozeline.train.labelled.predictions import Predictions
from clozeline.train.labelled.scores import Scores, mean_in_words

MISTAKES = 10  # how many are listed, the most confident first
SHOWN_TEXT = 300  # characters of a text
IMBALANCE = 3  # a class with this many times the rows of another is worth a note


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
    results: tuple[ModelResult[Scores], ...]
    chosen: ModelKey  # the model that became the classifier
    calibration: Calibration
    mistakes: tuple[Mistake, ...]  # the most confident first
    class_counts: dict[str, int]  # training rows
    #: Texts of each test set found in the pretraining corpus and dropped; None: not checked
    excluded: dict[str, int | None]
    notes: tuple[str, ...]  # what the user should know
    sources: dict[str, str | None]  # RUN, TRAIN and --test as given, for the record

    @property
    def finetuned(self) -> ModelResult[Scores]:
        return next(result for result in self.results if result.key == self.chosen)

    @property
    def rows(self) -> int:
        return self.chosen.examples

    def points(self) -> list[Point]:
        return points_of(self.results)

    def to_dict(self) -> dict[str, Any]:
        whole = [result for result in self.results if result.key.examples == self.rows]
        first = {result.key.start: result.scores.to_dict() for result in reversed(whole)}
        return {
            **self.sources,
            "examples": self.rows,
            "seed": self.chosen.seed,
            "plan": asdict(self.finetuned.chosen.plan),
            "finetuned": self.finetuned.scores.to_dict(),
            "from_scratch": first.get("from_scratch"),  # of the first seed
            "bag_of_words": first.get("bag_of_words"),
            "label_efficiency": [
                {**asdict(point), "mean": point.mean(), "deviation": point.deviation()}
                for point in self.points()
            ],
            "calibration": asdict(self.calibration),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
            "class_counts": self.class_counts,
            "excluded": self.excluded,
            "notes": list(self.notes),
            "results": [result.to_dict() for result in self.results],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(
            is_new=False,
            results=tuple(map(ModelResult.from_dict, values["results"])),
            chosen=ModelKey(start="pretrained", examples=values["examples"], seed=values["seed"]),
            calibration=Calibration(**values["calibration"]),
            mistakes=tuple(Mistake(**mistake) for mistake in values["mistakes"]),
            class_counts=values["class_counts"],
            excluded=values["excluded"],
            notes=tuple(values["notes"]),
            sources={name: values[name] for name in ("run", "train", "test")},
        )

    def lines(self) -> list[str]:
        """For a terminal: the classes, the compared models, label efficiency, calibration."""
        result, calibration, points = self.finetuned, self.calibration, self.points()
        selection = result.chosen
        return [
            *result.scores.table(),
            "",
            *(f"{SHOWN[p.start]:>20}  {_accuracy(p)}" for p in points if p.examples == self.rows),
            *label_efficiency_table(points),
            "",
            f"{'chosen on training rows' if selection.tried else 'as given'}: {selection.line()}",
            f"calibration error {calibration.error_before:.4f}"
            + (
                f", {calibration.error:.4f} at temperature {calibration.temperature:.2f}"
                if calibration.temperature != 1
                else "; no temperature was fitted that is sure to lower it"
            ),
            *(f"{name} rows: {exclusion(found)}" for name, found in self.excluded.items()),
            *(f"note: {note}" for note in self.notes),
        ]

    def figures(self) -> dict[str, bytes]:
        """The curve as SVG and PNG by file name; empty for a single size or without matplotlib."""
        points = self.points()
        if len({point.examples for point in points}) < 2 or not find_spec("matplotlib"):
            return {}
        return {
            f"label_efficiency.{kind}": draw_label_efficiency(points, kind=kind)
            for kind in ("svg", "png")
        }


def summarize(
    job: Job,
    results: Sequence[ModelResult[Any]],
    best: ModelResult[Scores],
    logits: Logits,
    predictions: Predictions,
    *,
    notes: Sequence[str],
    sources: dict[str, str | None],
) -> FinetuneReport:
    """The report of the results, and of the best one's logits for the test rows, [N, C]."""
    counts = Counter(job.train.labels)
    class_counts = {name: counts[name] for name in job.names}
    notes = [*notes, *(_imbalance(class_counts) if job.config.class_weights == "none" else [])]
    if len({result.key.examples for result in results}) > 1 and not find_spec("matplotlib"):
        notes.append("no figure was drawn: matplotlib is not installed.")
    temperature = best.chosen.held_out.temperature
    return FinetuneReport(
        is_new=True,
        results=tuple(results),
        chosen=best.key,
        calibration=Calibration.of(logits, predictions.labels, temperature=temperature),
        mistakes=tuple(_mistakes(predictions, job.start.truncate)),
        class_counts=class_counts,
        excluded=job.excluded,
        notes=tuple(notes),
        sources=sources,
    )


def exclusion(found: int | None) -> str:
    """Whether a test set was kept out of the pretraining corpus, in words."""
    if found is None:
        return "not checked against the pretraining corpus; `shards --exclude` does"
    return f"excluded from the pretraining corpus, which had words of {found:,} of them"


def _accuracy(point: Point) -> str:
    seeds = len(point.accuracies)
    line = f"accuracy {mean_in_words(point.accuracies, '.4f')}"
    line += f" ({seeds} seeds)" if seeds > 1 else ""
    others = (f"{point.mean(source):.4f} on {source}" for source in point.also)
    return ", ".join([line, *others])


def _imbalance(class_counts: dict[str, int]) -> list[str]:
    most, least = (find(class_counts, key=class_counts.__getitem__) for find in (max, min))
    if class_counts[most] < IMBALANCE * class_counts[least]:
        return []
    return [
        f"classes are imbalanced: {class_counts[most]:,} training rows are {most!r}, "
        f"{class_counts[least]:,} are {least!r}; --class-weights balanced weighs them equally."
    ]


def _mistakes(found: Predictions, truncate: Truncate) -> Iterator[Mistake]:
    predicted, confidence = found.predicted, found.confidence
    wrong = np.flatnonzero(predicted != found.labels)
    for row in wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]:
        text = found.texts[row]
        if len(text) > SHOWN_TEXT:
            text = "…".join(ends_of(text, SHOWN_TEXT - 1, truncate))
        yield Mistake(
            row=int(row) + 1,
            text=text,
            label=found.names[found.labels[row]],
            predicted=found.names[predicted[row]],
            confidence=float(confidence[row]),
        )
