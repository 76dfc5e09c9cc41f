"""The fine-tuning report: scores of the classifier and of the models it is compared with.

results, the classifier's test logits  ->  lines for a terminal, report.json, figures
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from clozeline.train.finetuning.job import TEST, Job
from clozeline.train.finetuning.label_efficiency import (
    Point,
    draw_label_efficiency,
    label_efficiency_table,
    points_of,
)
from clozeline.train.finetuning.results import SHOWN, ModelKey, ModelResult, Start
from clozeline.train.finetuning.training_loop import Logits
from clozeline.train.labelled.calibration import Calibration, softmax
from clozeline.train.labelled.duplicates import near_duplicates
from clozeline.train.labelled.rows import Labelled, class_ids
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
    near_copies: int  # test rows that have a near copy among the training rows
    #: Texts of each test set found in the pretraining corpus and dropped; None: not checked
    excluded: dict[str, int | None]
    notes: tuple[str, ...]  # what the user should know
    sources: dict[str, str | None]  # RUN, TRAIN and --test as given, for the record

    @property
    def finetuned(self) -> ModelResult[Scores]:
        """The result of the classifier."""
        return next(result for result in self.results if result.key == self.chosen)

    def scores(self, start: Start) -> Scores | None:
        """Scores of a model trained on all rows (chosen or first seed); None if not trained."""
        found = (r for r in self.results if (r.key.start, r.key.examples) == (start, self.rows))
        result = self.finetuned if start == "pretrained" else next(found, None)
        return result.scores if result else None

    @property
    def rows(self) -> int:
        """The number of training rows."""
        return self.chosen.examples

    def points(self) -> list[Point]:
        """The accuracies over seeds, by number of rows, then by model as in SHOWN."""
        return points_of(self.results)

    def to_dict(self) -> dict[str, Any]:
        """As report.json stores it."""
        others: tuple[Start, ...] = ("from_scratch", "bag_of_words")
        scores = {start: self.scores(start) for start in others}
        return {
            **self.sources,
            "examples": self.rows,
            "seed": self.chosen.seed,
            "plan": asdict(self.finetuned.chosen.plan),
            "finetuned": self.finetuned.scores.to_dict(),
            **{name: found.to_dict() if found else None for name, found in scores.items()},
            "label_efficiency": [
                {**asdict(point), "mean": point.mean(), "deviation": point.deviation()}
                for point in self.points()
            ],
            "calibration": asdict(self.calibration),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
            "class_counts": self.class_counts,
            "near_copies": self.near_copies,
            "excluded": self.excluded,
            "notes": list(self.notes),
            "results": [result.to_dict() for result in self.results],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The report of a finished folder."""
        return cls(
            is_new=False,
            results=tuple(map(ModelResult.from_dict, values["results"])),
            chosen=ModelKey(start="pretrained", examples=values["examples"], seed=values["seed"]),
            calibration=Calibration.from_dict(values["calibration"]),
            mistakes=tuple(Mistake(**mistake) for mistake in values["mistakes"]),
            class_counts=values["class_counts"],
            near_copies=values["near_copies"],
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
            f"{self.near_copies:,} of {result.scores.examples:,} test rows have a near copy among "
            "the training rows",
            *(f"{name} rows: {exclusion(found)}" for name, found in self.excluded.items()),
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
    job: Job,
    results: Sequence[ModelResult[Any]],
    best: ModelResult[Scores],
    logits: Logits,
    *,
    notes: Sequence[str],
    sources: dict[str, str | None],
) -> FinetuneReport:
    """The report of finished results and of the classifier's logits for the test rows, [N, C]."""
    test, temperature = job.tests[TEST], best.chosen.held_out.temperature
    counts = Counter(job.train.labels)
    class_counts = {name: counts[name] for name in job.names}
    notes = [*notes, *_imbalance(class_counts)]
    if len({result.key.examples for result in results}) > 1 and not has_matplotlib():
        notes.append("no figure was drawn: matplotlib is not installed.")
    labels = class_ids(test, job.names)
    is_near_copy = near_duplicates(test.texts.joined(), job.train.texts.joined())
    return FinetuneReport(
        is_new=True,
        results=tuple(results),
        chosen=best.key,
        calibration=Calibration.of(logits, labels, temperature=temperature),
        mistakes=tuple(_mistakes(softmax(logits, temperature), labels, job.names, test)),
        class_counts=class_counts,
        near_copies=int(is_near_copy.sum()),
        excluded=job.excluded,
        notes=tuple(notes),
        sources=sources,
    )


def exclusion(found: int | None) -> str:
    """Whether a test set was kept out of the pretraining corpus, in words."""
    if found is None:
        return "not checked against the pretraining corpus; `shards --exclude` does"
    return f"excluded from the pretraining corpus, which had words of {found:,} of them"


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    return find_spec("matplotlib") is not None


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
