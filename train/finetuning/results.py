"""Results of the compared models, one file each, so that a killed comparison can resume.

    OUT/results/job.json                        what is compared: config and digests
    OUT/results/from_scratch-1000-0.json        model, training rows, seed: scores and choices
    OUT/results/pretrained-59242-0.safetensors  weights and test logits of a candidate

A candidate may become the classifier. The finished classifier replaces the folder; the results of a
regression stay.
"""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import file_sha256, json_values, write_json
from clozeline.train.artifacts.classifier_folder import JOB, RESULTS
from clozeline.train.engine.attempt_store import leave_mark
from clozeline.train.finetuning.search import Trial
from clozeline.train.finetuning.training_loop import Logits
from clozeline.train.labelled.scores import Correlations, Scores

WEIGHTS = "weights_sha256"  #: key in a result's JSON file: the hash of its stored weights
TEST_LOGITS = "logits of the test rows"  #: beside the weights, which have other names
ADVICE = "give --overwrite to start again"
AnyScores = TypeVar("AnyScores", Scores, Correlations)  # of classes, or of a regression

Start = Literal["pretrained", "from_scratch", "bag_of_words"]

SHOWN: dict[Start, str] = {
    "pretrained": "fine-tuned",
    "from_scratch": "from scratch",
    "bag_of_words": "bag-of-words",
}


class ModelKey(NamedTuple):
    """One model of a comparison."""

    start: Start
    examples: int  # training rows
    seed: int

    @property
    def title(self) -> str:
        """Its name in progress bars and messages."""
        return f"{SHOWN[self.start]}, {self.examples:,} rows, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Result(Generic[AnyScores]):
    """The scores of one model on the test rows, and on other test sets by source."""

    key: ModelKey
    scores: AnyScores
    also: dict[str, AnyScores] = field(default_factory=dict)
    trial: Trial | None = None  # as it was trained; None: bag-of-words, which has nothing to choose
    tried: tuple[Trial, ...] = ()  # those of the search, of the first seed

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
        kind: Any = Scores if "confusion" in values["scores"] else Correlations
        return cls(
            key=ModelKey(values["start"], values["examples"], values["seed"]),
            scores=kind.from_dict(values["scores"]),
            also={source: kind.from_dict(scores) for source, scores in values["also"].items()},
            trial=Trial(**values["trial"]) if values["trial"] else None,
            tried=tuple(Trial(**trial) for trial in values["tried"]),
        )


class ResultFolder:
    """The results in OUT, which one process reads and writes."""

    def __init__(
        self, out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool = False
    ) -> None:
        """With `overwrite`, remove results of another job, or, without `resume`, all of them.

        Otherwise raises InputError if there are results of another job, or any without `resume`.
        """
        self._folder, self.job = out / RESULTS, job
        is_continued = resume and is_unfinished(out, job)
        if (overwrite and not is_continued) or not (self._folder / JOB).exists():
            shutil.rmtree(self._folder, ignore_errors=True)
        elif not resume:
            raise InputError(
                f"{out} holds results of an earlier fine-tuning; add --resume to continue it, or "
                "--overwrite to start again."
            )
        elif differs := differences(_read(self._folder / JOB), job):
            raise InputError(
                f"{out} holds a fine-tuning with another config ({'; '.join(differs)}). Give "
                "another --out, or --overwrite to start again."
            )

    def read(self, key: ModelKey, *, is_candidate: bool) -> Result[Any] | None:
        """A finished result; None if there is none, or its weights are missing or damaged."""
        path = self._path(key, "json")
        if not path.exists():
            return None
        with json_values(path, ADVICE) as values:
            if is_candidate and not self._has_weights(key, values):
                return None
            return Result.from_dict(values)

    def write(
        self,
        result: Result[Any],
        weights: Mapping[str, Tensor] | None = None,
        logits: Logits | None = None,
    ) -> None:
        """Store a finished result; of a candidate with weights, and logits [N, C] of test rows.

        Raises InputError where the disk is full.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / JOB).exists():
            leave_mark(self._folder)
            write_json(self._folder / JOB, self.job)
        values = result.to_dict()
        if weights is not None and logits is not None:
            path = self._path(result.key, "safetensors")
            _save(path, {**weights, TEST_LOGITS: torch.from_numpy(logits)})
            values[WEIGHTS] = file_sha256(path)
        write_json(self._path(result.key, "json"), values)

    def read_candidate(self, key: ModelKey) -> tuple[dict[str, Tensor], Logits]:
        """Its weights by name, and its logits [N, C] of the test rows."""
        weights = load_file(self._path(key, "safetensors"))
        return weights, weights.pop(TEST_LOGITS).numpy()

    def _has_weights(self, key: ModelKey, values: dict[str, Any]) -> bool:
        path = self._path(key, "safetensors")
        is_whole = path.exists() and file_sha256(path) == values.get(WEIGHTS)
        if path.exists() and not is_whole:
            print(f"warning: {path} is damaged; the model is trained again.", file=sys.stderr)
        return is_whole

    def _path(self, key: ModelKey, ending: str) -> Path:
        return self._folder / f"{key.start}-{key.examples}-{key.seed}.{ending}"


def is_unfinished(out: Path, job: dict[str, Any]) -> bool:
    """Whether the folder holds results of this job. Raises InputError if they cannot be read."""
    path = out / RESULTS / JOB
    return path.exists() and not differences(_read(path), job)


def _save(path: Path, values: dict[str, Tensor]) -> None:
    partial = path.with_suffix(".partial")
    try:
        save_file({name: value.cpu().contiguous() for name, value in values.items()}, partial)
    except SafetensorError as error:
        partial.unlink(missing_ok=True)  # older safetensors leave what they wrote
        raise InputError(f"{path} cannot be written ({error}); free some space.") from error
    partial.replace(path)


def _read(path: Path) -> Any:
    with json_values(path, ADVICE) as values:
        return values
