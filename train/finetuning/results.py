"""Results of the compared models, stored one by one, so that a killed comparison can resume.

    OUT/finetuned.json           config and digests of the job; scores and choices of each model
    OUT/finetuned.safetensors    weights and test logits of the classifier to be

The finished classifier replaces the folder; the results of a regression stay. They are also in
report.json, and lines for a terminal:

 rows      fine-tuned    from scratch    bag-of-words
  100      84.1 ± 1.2      55.0 ± 2.3      71.9 ± 1.8
1,000      91.0 ± 0.3      80.2 ± 0.9      85.6 ± 0.4
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from safetensors.torch import load_file, save
from torch import Tensor

from clozeline.pipeline.commandline.config_options import option_name
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import file_sha256, json_values, write_json
from clozeline.pipeline.common.paths import whole_file
from clozeline.train.artifacts.classifier_folder import RESULT_WEIGHTS, RESULTS
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.search import Trial
from clozeline.train.labelled.scores import Scores, mean_in_words, scores_of

Point = dict[str, Any]  # the accuracies of one model, see `points_of`
ModelName = Literal["pretrained", "from_scratch", "bag_of_words"]

TITLES: dict[ModelName, str] = {
    "pretrained": "fine-tuned",
    "from_scratch": "from scratch",
    "bag_of_words": "bag-of-words",
}


class ModelKey(NamedTuple):
    """One model of a comparison."""

    start: ModelName
    examples: int  # training rows
    seed: int

    @property
    def title(self) -> str:
        """Its name in progress bars and messages."""
        return f"{TITLES[self.start]}, {self.examples:,} rows, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The scores of one model on the test rows, and on other test sets by source."""

    key: ModelKey
    scores: Any  # Scores of classes, or Correlations of a regression
    also: dict[str, Any] = field(default_factory=dict)
    trial: Trial | None = None  # as it was trained; None: bag-of-words, which has nothing to choose
    tried: Sequence[Trial] = ()  # those of the search, of the first seed

    @property
    def chosen(self) -> Trial:
        """The trial of a model that is fine-tuned, unlike bag-of-words."""
        assert self.trial is not None
        return self.trial

    def line(self) -> str:
        line = f"{self.key.title}: {self.scores.summary}"
        return f"{line} ({self.trial.line()})" if self.trial else line

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.key._asdict(),
            "scores": self.scores.to_dict(),
            "also": {source: scores.to_dict() for source, scores in self.also.items()},
            "trial": asdict(self.trial) if self.trial else None,
            "tried": [asdict(trial) for trial in self.tried],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(
            key=ModelKey(values["start"], values["examples"], values["seed"]),
            scores=scores_of(values["scores"]),
            also={source: scores_of(scores) for source, scores in values["also"].items()},
            trial=Trial(**values["trial"]) if values["trial"] else None,
            tried=tuple(Trial(**trial) for trial in values["tried"]),
        )


class ResultFolder:
    """The finished results in OUT, which one process writes."""

    def __init__(self, out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Results of this job stay with `resume`; with `overwrite`, others are removed.

        Raises InputError for results of another job, and of this one without `resume`.
        """
        self.out, self._job = out, job
        self.results: dict[ModelKey, Result] = {}
        self._weights: dict[str, Any] = {}  # whose they are, and their sha256
        if overwrite and not resume:
            (out / RESULTS).unlink(missing_ok=True)
        if not (out / RESULTS).exists():
            return
        with json_values(out / RESULTS, "start again with --overwrite alone") as stored:
            if overwrite and differences(stored["job"], job):
                (out / RESULTS).unlink()
                return
            if not resume:
                raise InputError(
                    f"{out} holds results of an earlier fine-tuning; add --resume to continue it, "
                    "or --overwrite to start again."
                )
            check_job(out, stored["job"], job)
            self.results = {one.key: one for one in map(Result.from_dict, stored["results"])}
            self._weights = stored["weights"]
        path = out / RESULT_WEIGHTS
        if self._weights and not (path.exists() and file_sha256(path) == self._weights["sha256"]):
            print(f"note: {path} is missing or damaged: its model is trained anew", file=sys.stderr)
            self.results.pop(ModelKey(*self._weights["of"]), None)

    def write(self, result: Result, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store a finished result; before it the tensors, of the model that is kept."""
        if tensors:
            data = save({name: value.cpu().contiguous() for name, value in tensors.items()})
            with whole_file(self.out / RESULT_WEIGHTS) as file:
                file.write(data)
            self._weights = {"of": list(result.key), "sha256": sha256(data).hexdigest()}
        self.results[result.key] = result
        results = [one.to_dict() for one in self.results.values()]
        stored = {"job": self._job, "weights": self._weights, "results": results}
        write_json(self.out / RESULTS, stored)

    def read_tensors(self) -> dict[str, Tensor]:
        return load_file(self.out / RESULT_WEIGHTS)


def check_job(out: Path, stored: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """Raises InputError, with what differs, where OUT is of another job."""
    if differs := differences(stored, job):
        raise InputError(
            f"{out} holds a fine-tuning with another config ({'; '.join(differs)}). Give another "
            "--out, or --overwrite to start again."
        )


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
        """For a terminal: the classes, the compared models, label efficiency, the choices."""
        result, points = self.finetuned, self.values["label_efficiency"]
        whole = (point for point in points if point["examples"] == self.rows)
        return [
            *result.scores.table(),
            "",
            *(f"{TITLES[point['start']]:>20}  {_accuracy(point)}" for point in whole),
            *label_efficiency_table(points),
            "",
            f"{'chosen on training rows' if result.tried else 'as given'}: {result.chosen.line()}",
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
    """The accuracies of all seeds, by number of rows, then by model as in TITLES.

    {"start": "pretrained", "examples": 100, "accuracies": [0.84, 0.85], "also": {"imdb": [..]},
     "mean": 0.845, "deviation": 0.007}
    """
    order = list(TITLES)
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
    rows: dict[int, dict[str, str]] = {}
    for point in points:
        percents = [100 * accuracy for accuracy in point["accuracies"]]
        row = rows.setdefault(point["examples"], {})
        row[TITLES[point["start"]]] = mean_in_words(percents, ".1f")
    if len(rows) < 2:
        return []
    [titles, *_] = rows.values()
    table = {"rows": titles} | {f"{size:,}": row.values() for size, row in rows.items()}
    lines = (f"{head:>10}" + "".join(map("{:>16}".format, row)) for head, row in table.items())
    return ["", "accuracy, %", *lines]


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
            measured = f"accuracy {ours['mean']:.4f}, {TITLES[start]} {other['mean']:.4f}"
            notes.append(f"{TITLES[start]} is better: {measured}; {advice}.")
    return notes


def _accuracy(point: Point) -> str:
    count = len(point["accuracies"])
    line = f"accuracy {mean_in_words(point['accuracies'], '.4f')}"
    line += f" ({count} seeds)" if count > 1 else ""
    others = (f"{np.mean(seeds):.4f} on {source}" for source, seeds in point["also"].items())
    return ", ".join([line, *others])
