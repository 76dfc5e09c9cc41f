"""The fine-tuning report: scores of the classifier and of the models it is compared with.

results, the classifier's test logits  ->  report.json, lines for a terminal

 rows      fine-tuned    from scratch    bag-of-words
  100      84.1 ± 1.2      55.0 ± 2.3      71.9 ± 1.8
1,000      91.0 ± 0.3      80.2 ± 0.9      85.6 ± 0.4
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from clozeline.pipeline.commandline.config_options import option_name
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.results import SHOWN, Result
from clozeline.train.labelled.scores import Scores, mean_in_words

Point = dict[str, Any]  # the accuracies of one model, see `points_of`


@dataclass(frozen=True)
class FinetuneReport:
    """The result of a call to `finetune`."""

    values: dict[str, Any]  # the content of report.json
    is_new: bool = False  # False: the classifier was there

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """Those of all compared models."""
        return tuple(map(Result.from_dict, self.values["results"]))

    @property
    def finetuned(self) -> Result:
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
        result, fitted = self.finetuned, self.values["calibration"]
        points = self.values["label_efficiency"]
        whole = (point for point in points if point["examples"] == self.rows)
        return [
            *result.scores.table(),
            "",
            *(f"{SHOWN[point['start']]:>20}  {_accuracy(point)}" for point in whole),
            *label_efficiency_table(points),
            "",
            f"{'chosen on training rows' if result.tried else 'as given'}: {result.chosen.line()}",
            f"calibration error {fitted['error_before']:.4f}"
            + (
                f", {fitted['error']:.4f} at temperature {fitted['temperature']:.2f}"
                if fitted["temperature"] != 1
                else "; no temperature lowers it reliably, so none is applied"
            ),
            *(f"note: {note}" for note in self.values["notes"]),
        ]


def report_of(results: Sequence[Result], best: Result) -> dict[str, Any]:
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


def points_of(results: Sequence[Result]) -> list[Point]:
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
    by_key = {(point["examples"], point["start"]): point["accuracies"] for point in points}
    lines = ["", "accuracy, %", "      rows" + "".join(f"{SHOWN[start]:>16}" for start in starts)]
    for size in sizes:
        percents = ([100 * accuracy for accuracy in by_key[size, start]] for start in starts)
        cells = (f"{mean_in_words(percent, '.1f'):>16}" for percent in percents)
        lines.append(f"{size:>10,}" + "".join(cells))
    return lines


def doubts(scores: Scores, points: Sequence[Point], config: FinetuneConfig) -> list[str]:
    """Notes on a classifier that is not worth using, with what to try.

    It predicts one class, or is worse than bag-of-words or the same model from scratch. The
    classifier's `scores` are one of the seeds in `points`.
    """
    fixed = [
        option_name(name) for name in ("learning_rate", "epochs") if getattr(config, name) != "auto"
    ]
    search = f"leave {' and '.join(fixed)} out to have them chosen, " if fixed else ""
    advice = f"{search}give more labelled rows, or pretrain on more text like that of the task"
    notes = []
    labels, predictions = scores.confusion.sum(1), scores.confusion.sum(0)
    if (labels > 0).sum() > 1 and (predictions > 0).sum() == 1:
        name = scores.names[int(predictions.argmax())]
        notes.append(f"all {scores.examples:,} test rows are predicted as {name!r}; {advice}.")
    most = max(point["examples"] for point in points)
    compared = {point["start"]: point for point in points if point["examples"] == most}
    ours = compared.pop("pretrained")
    for start, other in compared.items():
        if ours["mean"] < other["mean"]:
            measured = f"accuracy {ours['mean']:.4f}, {SHOWN[start]} {other['mean']:.4f}"
            notes.append(f"{SHOWN[start]} is better: {measured}; {advice}.")
    return notes


def _accuracy(point: Point) -> str:
    count = len(point["accuracies"])
    line = f"accuracy {mean_in_words(point['accuracies'], '.4f')}"
    line += f" ({count} seeds)" if count > 1 else ""
    others = (f"{np.mean(seeds):.4f} on {source}" for source, seeds in point["also"].items())
    return ", ".join([line, *others])
