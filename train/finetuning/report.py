"""The fine-tuning report: scores of the classifier and of the models it is compared with.

results, the classifier's test logits  ->  report.json, lines for a terminal

 rows      fine-tuned    from scratch    bag-of-words
  100      84.1 ± 1.2      55.0 ± 2.3      71.9 ± 1.8
1,000      91.0 ± 0.3      80.2 ± 0.9      85.6 ± 0.4
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Self

import numpy as np

from clozeline.train.finetuning.job import Job
from clozeline.train.finetuning.results import SHOWN, ModelKey, Result, Start
from clozeline.train.finetuning.training_loop import Logits
from clozeline.train.labelled.calibration import Calibration
from clozeline.train.labelled.rows import Rows
from clozeline.train.labelled.scores import Scores, mean_in_words

IMBALANCE = 3  # a class with this many times the rows of another is worth a note
FALLING = 0.99  #: a held-out loss below this share of the one before it is still falling


@dataclass(frozen=True, kw_only=True)
class Point:
    """One model trained on `examples` rows: its accuracy for each seed."""

    start: Start
    examples: int
    accuracies: tuple[float, ...]  # one per seed
    also: dict[str, tuple[float, ...]]  # on other test sets, by source

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Sample standard deviation over the seeds; 0 for a single seed."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class FinetuneReport:
    """The result of a call to `finetune`."""

    is_new: bool  # False: there was nothing to do
    results: tuple[Result[Scores], ...]
    chosen: ModelKey  # the model that became the classifier
    calibration: Calibration
    class_counts: dict[str, int]  # training rows
    #: Texts of each test set found in the pretraining corpus and dropped; None: not checked
    excluded: dict[str, int | None]
    notes: tuple[str, ...]  # what the user should know
    sources: dict[str, str | None]  # RUN, TRAIN and --test as given, for the record

    @property
    def finetuned(self) -> Result[Scores]:
        return next(result for result in self.results if result.key == self.chosen)

    @property
    def rows(self) -> int:
        return self.chosen.examples

    def to_dict(self) -> dict[str, Any]:
        whole = [result for result in self.results if result.key.examples == self.rows]
        first = {result.key.start: result.scores.to_dict() for result in reversed(whole)}
        chosen = self.finetuned.chosen
        return {
            **self.sources,
            "examples": self.rows,
            "seed": self.chosen.seed,
            "plan": {"learning_rate": chosen.learning_rate, "epochs": chosen.epochs},
            "finetuned": self.finetuned.scores.to_dict(),
            "from_scratch": first.get("from_scratch"),  # of the first seed
            "bag_of_words": first.get("bag_of_words"),
            "label_efficiency": [
                {**asdict(point), "mean": point.mean, "deviation": point.deviation}
                for point in points_of(self.results)
            ],
            "calibration": asdict(self.calibration),
            "class_counts": self.class_counts,
            "excluded": self.excluded,
            "notes": list(self.notes),
            "results": [result.to_dict() for result in self.results],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(
            is_new=False,
            results=tuple(map(Result.from_dict, values["results"])),
            chosen=ModelKey("pretrained", values["examples"], values["seed"]),
            calibration=Calibration(**values["calibration"]),
            notes=tuple(values["notes"]),
            sources={name: values[name] for name in ("run", "train", "test")},
            class_counts=values["class_counts"],
            excluded=values["excluded"],
        )

    def lines(self) -> list[str]:
        """For a terminal: the classes, the compared models, label efficiency, calibration."""
        result, calibration, points = self.finetuned, self.calibration, points_of(self.results)
        return [
            *result.scores.table(),
            "",
            *(f"{SHOWN[p.start]:>20}  {_accuracy(p)}" for p in points if p.examples == self.rows),
            *label_efficiency_table(points),
            "",
            f"{'chosen on training rows' if result.tried else 'as given'}: {result.chosen.line()}",
            f"calibration error {calibration.error_before:.4f}"
            + (
                f", {calibration.error:.4f} at temperature {calibration.temperature:.2f}"
                if calibration.temperature != 1
                else "; no temperature was fitted that is sure to lower it"
            ),
            *(f"{name} rows: {_exclusion(found)}" for name, found in self.excluded.items()),
            *(f"note: {note}" for note in self.notes),
        ]


def summarize(
    job: Job,
    results: Sequence[Result[Any]],
    best: Result[Scores],
    logits: Logits,
    labels: Rows,
    *,
    notes: Sequence[str],
    sources: dict[str, str | None],
) -> FinetuneReport:
    """The report of the results, and of the best one's logits [N, C] for test rows of `labels`."""
    counts = Counter(job.train.labels)
    class_counts = {name: counts[name] for name in job.names}
    imbalance = _imbalance(class_counts) if job.config.class_weights == "none" else []
    temperature = best.chosen.temperature
    return FinetuneReport(
        is_new=True,
        results=tuple(results),
        chosen=best.key,
        calibration=Calibration.of(logits, labels, temperature=temperature),
        class_counts=class_counts,
        excluded=job.excluded,
        notes=(*notes, *imbalance),
        sources=sources,
    )


def points_of(results: Sequence[Result[Scores]]) -> list[Point]:
    """The accuracies over seeds, by number of rows, then by model as in SHOWN."""
    order = list(SHOWN)
    results = sorted(results, key=lambda r: (r.key.examples, order.index(r.key.start)))
    points = []
    for (examples, start), group in groupby(results, lambda r: (r.key.examples, r.key.start)):
        seeds = list(group)
        also = {
            source: tuple(result.also[source].accuracy for result in seeds)
            for source in seeds[0].also
        }
        accuracies = tuple(result.scores.accuracy for result in seeds)
        points.append(Point(start=start, examples=examples, accuracies=accuracies, also=also))
    return points


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
            found = (by_key[size, start] for start in starts)
            seeds = (point.also[source] if source else point.accuracies for point in found)
            shown = (mean_in_words([100 * accuracy for accuracy in of], ".1f") for of in seeds)
            lines.append(f"{size:>10,}" + "".join(f"{percent:>16}" for percent in shown))
    return lines


def no_gain(
    points: Sequence[Point], *, test_rows: int, losses: Sequence[float], pairs: str
) -> list[str]:
    """A note where pretraining, with these losses and pairs, did not pay beyond the noise."""
    most = max(point.examples for point in points)
    compared = {point.start: point for point in points if point.examples == most}
    ours, scratch = compared["pretrained"], compared.get("from_scratch")
    if scratch is None:
        return []
    noise = 2 * math.hypot(_error(ours, test_rows), _error(scratch, test_rows))
    if ours.mean - scratch.mean > noise:
        return []
    advice = ["pretrain on more text like that of the task"]
    if len(losses) > 1 and losses[-1] < FALLING * losses[-2]:
        advice.append(f"for more minutes (its held-out loss still fell, to {losses[-1]:.2f})")
    if pairs not in ("none", "packed"):
        advice.append("on shards of --pairs none")
    return [
        f"pretraining did not pay: accuracy {ours.mean:.4f}, from scratch {scratch.mean:.4f}, "
        f"and differences up to {noise:.4f} are noise; {', '.join(advice)}."
    ]


def _error(point: Point, test_rows: int) -> float:
    """Standard error of the mean over seeds, which share a sample of test rows."""
    of_seeds = point.deviation**2 / len(point.accuracies)
    return math.sqrt(of_seeds + point.mean * (1 - point.mean) / test_rows)


def _exclusion(found: int | None) -> str:
    """Whether a test set was kept out of the pretraining corpus, in words."""
    if found is None:
        return "not checked against the pretraining corpus; `shards --exclude` does"
    return f"excluded from the pretraining corpus, which had words of {found:,} of them"


def _accuracy(point: Point) -> str:
    seeds = len(point.accuracies)
    line = f"accuracy {mean_in_words(point.accuracies, '.4f')}"
    line += f" ({seeds} seeds)" if seeds > 1 else ""
    others = (f"{np.mean(found):.4f} on {source}" for source, found in point.also.items())
    return ", ".join([line, *others])


def _imbalance(class_counts: dict[str, int]) -> list[str]:
    most, least = (find(class_counts, key=class_counts.__getitem__) for find in (max, min))
    if class_counts[most] < IMBALANCE * class_counts[least]:
        return []
    return [
        f"classes are imbalanced: {class_counts[most]:,} training rows are {most!r}, "
        f"{class_counts[least]:,} are {least!r}; --class-weights balanced weighs them equally."
    ]
