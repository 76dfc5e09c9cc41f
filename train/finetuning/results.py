"""Results of the compared models, one file each, so that a killed comparison can resume.

    OUT/results/job.json                       what is compared: config and digests
    OUT/results/from_scratch-1000-0.json       model, training rows, seed: scores and choices
    OUT/results/pretrained-1000-0.safetensors  weights and test logits of the classifier to be

The finished classifier replaces the folder; the results of a regression stay.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from safetensors.torch import load_file, save
from torch import Tensor

from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.pipeline.common.paths import whole_file
from clozeline.train.artifacts.classifier_folder import JOB, RESULTS
from clozeline.train.finetuning.search import Trial
from clozeline.train.labelled.scores import Correlations, Scores

ADVICE = "give --overwrite to start again"

ModelName = Literal["pretrained", "from_scratch", "bag_of_words"]

SHOWN: dict[ModelName, str] = {
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
        return f"{SHOWN[self.start]}, {self.examples:,} rows, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The scores of one model on the test rows, and on other test sets by source."""

    key: ModelKey
    scores: Any  # Scores of classes, or Correlations of a regression
    also: dict[str, Any] = field(default_factory=dict)
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

    def __init__(self, out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Results of this job stay with `resume`; with `overwrite`, others are removed.

        Raises InputError for results of another job, and of this one without `resume`.
        """
        self._folder, self.job = out / RESULTS, job
        path = self._folder / JOB
        if not path.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        with json_values(path, ADVICE) as stored:
            differs = differences(stored, job)
        if overwrite and (differs or not resume):
            shutil.rmtree(self._folder)
        elif not resume:
            raise InputError(
                f"{out} holds results of an earlier fine-tuning; add --resume to continue it, or "
                "--overwrite to start again."
            )
        elif differs:
            raise InputError(
                f"{out} holds a fine-tuning with another config ({'; '.join(differs)}). Give "
                "another --out, or --overwrite to start again."
            )

    def read(self, key: ModelKey) -> Result | None:
        """A finished result, if there is one."""
        path = self._path(key, "json")
        if not path.exists():
            return None
        with json_values(path, ADVICE) as values:
            return Result.from_dict(values)

    def write(self, result: Result, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store a finished result; before it the tensors, of the model that is kept."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / JOB).exists():
            write_json(self._folder / JOB, self.job)
        if tensors:
            whole = {name: value.cpu().contiguous() for name, value in tensors.items()}
            with whole_file(self._path(result.key, "safetensors")) as file:
                file.write(save(whole))
        write_json(self._path(result.key, "json"), result.to_dict())

    def read_tensors(self, key: ModelKey) -> dict[str, Tensor]:
        return load_file(self._path(key, "safetensors"))

    def _path(self, key: ModelKey, ending: str) -> Path:
        return self._folder / f"{key.start}-{key.examples}-{key.seed}.{ending}"
