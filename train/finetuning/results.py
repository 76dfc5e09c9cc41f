"""Results of the compared models, one file each, so that a killed comparison can resume.

    OUT/results/job.json                        what is compared: config and digests
    OUT/results/from_scratch-1000-0.json        model, training rows, seed: scores and choices
    OUT/results/pretrained-59242-0.safetensors  weights and test logits of a candidate

The finished classifier replaces the folder; the results of a regression stay.
"""

import shutil
import sys
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.checksums import file_sha256
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.train.artifacts.classifier_folder import JOB, RESULTS
from clozeline.train.engine.attempt_store import leave_mark
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.hyperparameters import Selection
from clozeline.train.finetuning.training_loop import Logits
from clozeline.train.labelled.scores import Correlations, Scores
from clozeline.train.store.remote_folder import publish

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


@dataclass(frozen=True, kw_only=True)
class ModelKey:
    """One model of a comparison."""

    start: Start
    examples: int  # training rows
    seed: int

    @property
    def name(self) -> str:
        """The stem of its file names."""
        return f"{self.start}-{self.examples}-{self.seed}"

    @property
    def title(self) -> str:
        """Its name in progress bars and messages."""
        return f"{SHOWN[self.start]}, {self.examples:,} rows, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class ModelResult(Generic[AnyScores]):
    """The scores of one model on the test rows, and on other test sets by source."""

    key: ModelKey
    scores: AnyScores
    also: dict[str, AnyScores] = field(default_factory=dict)
    selection: Selection | None = None  # None: bag-of-words, which has nothing to choose

    @property
    def chosen(self) -> Selection:
        """The selection of a model that is fine-tuned, unlike bag-of-words."""
        assert self.selection is not None
        return self.selection

    def line(self) -> str:
        line = f"{self.key.title}: {self.scores.summary}"
        return f"{line} ({self.selection.line()})" if self.selection else line

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.key),
            "scores": self.scores.to_dict(),
            "also": {source: scores.to_dict() for source, scores in self.also.items()},
            "selection": asdict(self.selection) if self.selection else None,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        kind: Any = Scores if "confusion" in values["scores"] else Correlations
        selection = values["selection"]
        return cls(
            key=ModelKey(**{name: values[name] for name in ("start", "examples", "seed")}),
            scores=kind.from_dict(values["scores"]),
            also={source: kind.from_dict(scores) for source, scores in values["also"].items()},
            selection=Selection.from_dict(selection) if selection else None,
        )


@dataclass(frozen=True)
class Candidate:
    """A model that may become the classifier: its weights, and what it says of the test rows."""

    weights: dict[str, Tensor]
    logits: Logits  # [N, C] of the test rows


class ResultStore:
    """The finished models of an unfinished classifier folder."""

    def __init__(
        self, out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool = False
    ) -> None:
        """With `overwrite`, remove results of another job, or, without `resume`, all of them.

        Otherwise raises InputError if there are results of another job, or any without `resume`:
        those of a regression stay when it is finished.
        """
        self._folder = out / RESULTS
        self.job = job
        is_continued = resume and is_unfinished(out, job)
        if (overwrite and not is_continued) or not (self._folder / JOB).exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        if not resume:
            if self._is_regression():
                raise InputError(
                    f"{out} holds the results of a regression of `clozeline benchmark`; give "
                    "another --out, or --overwrite to replace them."
                )
            raise InputError(
                f"{out} holds an unfinished fine-tuning; add --resume to continue it, or "
                "--overwrite to start again."
            )
        if differs := differences(_read(self._folder / JOB), job):
            raise InputError(
                f"{out} holds a fine-tuning with another config ({'; '.join(differs)}). Give "
                "another --out, or --overwrite to start again."
            )

    def check_shared(self, world: World) -> None:
        """Raises InputError in all processes if one of them cannot see this folder."""
        if world.size == 1:
            return
        token = self._folder / world.broadcast_from_main(self._write_token)
        is_missing = world.any(not token.exists())

        def finish() -> None:
            token.unlink()
            if is_missing:
                raise InputError(
                    f"not every process sees {as_given(self._folder.parent)}; give --out a folder "
                    "of a file system that all machines share."
                )

        world.broadcast_from_main(finish)

    def read(self, key: ModelKey, *, with_weights: bool) -> ModelResult[Any] | None:
        """A finished result; None if there is none, or its weights are missing or damaged."""
        path = self._path(key, "json")
        if not path.exists():
            return None
        with json_values(path, ADVICE) as values:
            if with_weights and not self._has_weights(key, values):
                return None
            return ModelResult.from_dict(values)

    def read_finished(self, key: ModelKey) -> ModelResult[Any]:
        """A result that a process has written. Raises InputError where it is not found."""
        result = self.read(key, with_weights=False)
        if result is None:
            raise InputError(
                f"{self._path(key, 'json')} of another process is not found; give an --out that "
                "all processes share."
            )
        return result

    def write(self, result: ModelResult[Any], candidate: Candidate | None = None) -> None:
        """Store a finished result. Raises InputError where the disk is full."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / JOB).exists():
            leave_mark(self._folder)
            write_json(self._folder / JOB, self.job)
        values = result.to_dict()
        if candidate is not None:
            kept = {name: x.cpu().contiguous() for name, x in candidate.weights.items()}
            kept[TEST_LOGITS] = torch.from_numpy(candidate.logits)
            path = self._path(result.key, "safetensors")
            partial = path.with_suffix(".partial")
            try:
                save_file(kept, partial)
            except SafetensorError as error:
                partial.unlink(missing_ok=True)  # older safetensors leave what they wrote
                raise InputError(f"{path} cannot be written ({error}); free some space.") from error
            partial.replace(path)
            values[WEIGHTS] = file_sha256(path)
        write_json(self._path(result.key, "json"), values)
        publish(self._folder)

    def read_candidate(self, key: ModelKey) -> Candidate:
        weights = load_file(self._path(key, "safetensors"))
        return Candidate(weights, weights.pop(TEST_LOGITS).numpy())

    def _is_regression(self) -> bool:
        """Whether the results have the scores of a regression."""
        for path in self._folder.glob("*-*-*.json"):
            with json_values(path, ADVICE) as values:
                return "confusion" not in values["scores"]
        return False

    def _write_token(self) -> str:
        """The name of a new file that other processes can check for."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f".{uuid.uuid4().hex}"
        (self._folder / name).touch()
        return name

    def _has_weights(self, key: ModelKey, values: dict[str, Any]) -> bool:
        path = self._path(key, "safetensors")
        is_whole = path.exists() and file_sha256(path) == values.get(WEIGHTS)
        if path.exists() and not is_whole:
            print(f"warning: {path} is damaged; the model is trained again.", file=sys.stderr)
        return is_whole

    def _path(self, key: ModelKey, ending: str) -> Path:
        return self._folder / f"{key.name}.{ending}"


def is_unfinished(out: Path, job: dict[str, Any]) -> bool:
    """Whether the folder holds results of this job. Raises InputError if they cannot be read."""
    path = out / RESULTS / JOB
    return path.exists() and not differences(_read(path), job)


def _read(path: Path) -> Any:
    with json_values(path, ADVICE) as values:
        return values
