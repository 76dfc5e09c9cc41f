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
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from clozeline.train.finetuning.job import Job
from clozeline.train.finetuning.results import SHOWN, Result
from clozeline.train.finetuning.training_loop import Logits
from clozeline.train.labelled.calibration import Calibration
from clozeline.train.labelled.rows import Rows
from clozeline.train.labelled.scores import Scores, mean_in_words

IMBALANCE = 3  # a class with this many times the rows of another is worth a note
FALLING = 0.99  #: a held-out loss below this share of the one before it is still falling

Point = dict[str, Any]  # the accuracies of one model, see `points_of`


@dataclass(frozen=True)
class FinetuneReport:
    """The result of a call to `finetune`."""

    values: dict[str, Any]  # the content of report.json
    is_new: bool = False  # False: the classifier was there

    @cached_property
    def results(self) -> tuple[Result[Scores], ...]:
        """Those of all compared models."""
        return tuple(map(Result.from_dict, self.values["results"]))

    @property
    def finetuned(self) -> Result[Scores]:
        """That of the model that became the classifier."""
        key = ("pretrained", self.rows, self.values["seed"])
        return next(result for result in self.results if result.key == key)

    @property
    def rows(self) -> int:
        """The number of training rows."""
        rows: int = self.values["examples"]
        return rows

    def lines(self) -> list[str]:
        """For a terminal: the classes, the compared models, label efficiency, calibration."""
        result, calibration = self.finetuned, Calibration(**self.values["calibration"])
        points, excluded = self.values["label_efficiency"], self.values["excluded"]
        whole = (point for point in points if point["examples"] == self.rows)
        return [
            *result.scores.table(),
            "",
            *(f"{SHOWN[point['start']]:>20}  {_accuracy(point)}" for point in whole),
            *label_efficiency_table(points),
            "",
            f"{'chosen on training rows' if result.tried else 'as given'}: {result.chosen.line()}",
            f"calibration error {calibration.error_before:.4f}"
            + (
                f", {calibration.error:.4f} at temperature {calibration.temperature:.2f}"
                if calibration.temperature != 1
                else "; no temperature was fitted that is sure to lower it"
            ),
            *(f"{name} rows: {_exclusion(found)}" for name, found in excluded.items()),
            *(f"note: {note}" for note in self.values["notes"]),
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
    values = {
        **sources,
        **report_of(results, best),
        "calibration": asdict(Calibration.of(logits, labels, temperature=best.chosen.temperature)),
        "class_counts": class_counts,  # training rows
        "excluded": job.excluded,
        "notes": [*notes, *imbalance],
    }
    return FinetuneReport(values, is_new=True)


def report_of(results: Sequence[Result[Any]], best: Result[Scores]) -> dict[str, Any]:
    """The part of report.json that is about the models."""
    key, chosen = best.key, best.chosen
    whole = [result for result in results if result.key.examples == key.examples]
    first = {result.key.start: result.scores.to_dict() for result in reversed(whole)}
    return {
        "examples": key.examples,
        "seed": key.seed,
        "plan": {"learning_rate": chosen.learning_rate, "epochs": chosen.epochs},
        "finetuned": best.scores.to_dict(),
        "from_scratch": first.get("from_scratch"),  # of the first seed
        "bag_of_words": first.get("bag_of_words"),
        "label_efficiency": points_of(results),
        "results": [result.to_dict() for result in results],
    }


def points_of(results: Sequence[Result[Scores]]) -> list[Point]:
    """The accuracies of all seeds, by number of rows, then by model as in SHOWN.

    {"start": "pretrained", "examples": 100, "accuracies": [0.84, 0.85], "also": {"imdb": [..]},
     "mean": 0.845, "deviation": 0.007}
    """
    order = list(SHOWN)
    results = sorted(results, key=lambda r: (r.key.examples, order.index(r.key.start)))
    points = []
    for (examples, start), group in groupby(results, lambda r: (r.key.examples, r.key.start)):
        seeds = list(group)
        accuracies = [result.scores.accuracy for result in seeds]
        also = {name: [result.also[name].accuracy for result in seeds] for name in seeds[0].also}
        deviation = float(np.std(accuracies, ddof=1)) if len(seeds) > 1 else 0.0
        point = {"start": start, "examples": examples, "accuracies": accuracies, "also": also}
        points.append({**point, "mean": float(np.mean(accuracies)), "deviation": deviation})
    return points


def label_efficiency_table(points: Sequence[Point]) -> list[str]:
    """Mean and deviation in percent, a line per number of rows; empty for a single one."""
    sizes = sorted({point["examples"] for point in points})
    if len(sizes) < 2:
        return []
    starts = [start for start in SHOWN if any(point["start"] == start for point in points)]
    by_key = {(point["examples"], point["start"]): point for point in points}
    lines = []
    for source in (None, *points[0]["also"]):
        title = f"accuracy on {source}, %" if source else "accuracy, %"
        lines += ["", title, "      rows" + "".join(f"{SHOWN[start]:>16}" for start in starts)]
        for size in sizes:
            found = (by_key[size, start] for start in starts)
            seeds = (p["also"][source] if source else p["accuracies"] for p in found)
            shown = (mean_in_words([100 * accuracy for accuracy in of], ".1f") for of in seeds)
            lines.append(f"{size:>10,}" + "".join(f"{percent:>16}" for percent in shown))
    return lines


def no_gain(
    points: Sequence[Point], *, test_rows: int, losses: Sequence[float], pairs: str
) -> list[str]:
    """A note where pretraining, with these losses and pairs, did not pay beyond the noise."""
    most = max(point["examples"] for point in points)
    compared = {point["start"]: point for point in points if point["examples"] == most}
    ours, scratch = compared["pretrained"], compared.get("from_scratch")
    if scratch is None:
        return []
    noise = 2 * math.hypot(_error(ours, test_rows), _error(scratch, test_rows))
    if ours["mean"] - scratch["mean"] > noise:
        return []
    advice = ["pretrain on more text like that of the task"]
    if len(losses) > 1 and losses[-1] < FALLING * losses[-2]:
        advice.append(f"for more minutes (its held-out loss still fell, to {losses[-1]:.2f})")
    if pairs not in ("none", "packed"):
        advice.append("on shards of --pairs none")
    return [
        f"pretraining did not pay: accuracy {ours['mean']:.4f}, from scratch "
        f"{scratch['mean']:.4f}, and differences up to {noise:.4f} are noise; {', '.join(advice)}."
    ]


def _error(point: Point, test_rows: int) -> float:
    """Standard error of the mean over seeds, which share a sample of test rows."""
    of_seeds = point["deviation"] ** 2 / len(point["accuracies"])
    return math.sqrt(of_seeds + point["mean"] * (1 - point["mean"]) / test_rows)


def _exclusion(found: int | None) -> str:
    """Whether a test set was kept out of the pretraining corpus, in words."""
    if found is None:
        return "not checked against the pretraining corpus; `shards --exclude` does"
    return f"excluded from the pretraining corpus, which had words of {found:,} of them"


def _accuracy(point: Point) -> str:
    seeds = len(point["accuracies"])
    line = f"accuracy {mean_in_words(point['accuracies'], '.4f')}"
    line += f" ({seeds} seeds)" if seeds > 1 else ""
    others = (f"{np.mean(found):.4f} on {source}" for source, found in point["also"].items())
    return ", ".join([line, *others])


def _imbalance(class_counts: dict[str, int]) -> list[str]:
    most, least = (find(class_counts, key=class_counts.__getitem__) for find in (max, min))
    if class_counts[most] < IMBALANCE * class_counts[least]:
        return []
    return [
        f"classes are imbalanced: {class_counts[most]:,} training rows are {most!r}, "
        f"{class_counts[least]:,} are {least!r}; --class-weights balanced weighs them equally."
    ]
