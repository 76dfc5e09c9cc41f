"""Results of the compared models, one file each, so that a killed comparison can resume.

    OUT/cells/job.json                        what is compared: config and digests
    OUT/cells/from_scratch-1000-0.json        model, training rows, seed: scores and choices
    OUT/cells/pretrained-59242-0.safetensors  weights of a candidate for the classifier

The finished classifier replaces the folder.
"""

import shutil
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.checksums import file_sha256
from clozeline.pipeline.common.differences import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.train.artifacts.classifier_folder import CELLS, JOB
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.selection import Selection
from clozeline.train.labelled.scores import Scores

WEIGHTS = "weights_sha256"  #: key in a cell's JSON file: the hash of its stored weights

Start = Literal["pretrained", "from_scratch", "bag_of_words"]

SHOWN: dict[Start, str] = {
    "pretrained": "fine-tuned",
    "from_scratch": "from scratch",
    "bag_of_words": "bag-of-words",
}


@dataclass(frozen=True, kw_only=True)
class CellKey:
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
class Cell:
    """The result of one model on the test rows, and on other test sets by source."""

    key: CellKey
    scores: Scores
    also: dict[str, Scores] = field(default_factory=dict)
    selection: Selection | None = None  # None: bag-of-words, which has nothing to choose

    def line(self) -> str:
        """The result as one line of text."""
        line = f"{self.key.title}: accuracy {self.scores.accuracy:.4f}"
        return f"{line} ({self.selection.line()})" if self.selection else line

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "start": self.key.start,
            "examples": self.key.examples,
            "seed": self.key.seed,
            "scores": self.scores.to_dict(),
            "also": {source: scores.to_dict() for source, scores in self.also.items()},
            "selection": self.selection.to_dict() if self.selection else None,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        selection = values["selection"]
        return cls(
            key=CellKey(**{name: values[name] for name in ("start", "examples", "seed")}),
            scores=Scores.from_dict(values["scores"]),
            also={source: Scores.from_dict(scores) for source, scores in values["also"].items()},
            selection=Selection.from_dict(selection) if selection else None,
        )


class CellStore:
    """The finished cells of an unfinished classifier folder."""

    def __init__(self, out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        """With `overwrite`, remove cells of another job, or, without `resume`, all cells.

        Otherwise raises InputError if there are cells of another job, or any without `resume`.
        """
        self._folder = out / CELLS
        self._job = job
        is_continued = resume and is_unfinished(out, job)
        if (overwrite and not is_continued) or not (self._folder / JOB).exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        if not resume:
            raise InputError(
                f"{out} holds an unfinished fine-tuning; add --resume to continue it, or "
                "--overwrite to start again."
            )
        if differs := differences(_read(self._folder / JOB), job):
            raise InputError(
                f"{out} holds an unfinished fine-tuning with another config "
                f"({'; '.join(differs)}); give --overwrite to start again."
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

    def read(self, key: CellKey, *, with_weights: bool) -> Cell | None:
        """A finished cell; None if unfinished, or if weights it needs are missing or damaged."""
        path = self._path(key, "json")
        if not path.exists():
            return None
        values = _read(path)
        if with_weights and not self._has_weights(key, values):
            return None
        try:
            return Cell.from_dict(values)
        except (LookupError, TypeError) as error:
            raise InputError(
                f"{path} is of an earlier version; give --overwrite to start again."
            ) from error

    def read_other(self, key: CellKey) -> Cell:
        """A cell that another process has finished. Raises InputError where it is not found."""
        cell = self.read(key, with_weights=False)
        if cell is None:
            raise InputError(
                f"{self._path(key, 'json')} of another process is not found; give an --out that "
                "all processes share."
            )
        return cell

    def write(self, cell: Cell, weights: dict[str, Tensor] | None = None) -> None:
        """Store a finished cell. Raises InputError where the disk is full."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / JOB).exists():
            self._write(self._folder / JOB, self._job)
        values = cell.to_dict()
        if weights is not None:
            path = self._path(cell.key, "safetensors")
            partial = path.with_suffix(".partial")
            try:
                save_file(weights, partial)
            except SafetensorError as error:
                raise InputError(f"{path} cannot be written ({error}); free some space.") from error
            partial.replace(path)
            values[WEIGHTS] = file_sha256(path)
        self._write(self._path(cell.key, "json"), values)

    def read_weights(self, key: CellKey) -> dict[str, Tensor]:
        """The weights that were stored with a cell."""
        return load_file(self._path(key, "safetensors"))

    def _write_token(self) -> str:
        """The name of a new file that other processes can check for."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f".{uuid.uuid4().hex}"
        (self._folder / name).touch()
        return name

    def _has_weights(self, key: CellKey, values: dict[str, Any]) -> bool:
        """Whether the stored weights are intact."""
        path = self._path(key, "safetensors")
        if not path.exists():
            return False
        is_whole = file_sha256(path) == values.get(WEIGHTS)
        if not is_whole:
            print(f"warning: {path} is damaged; the model is trained again.", file=sys.stderr)
        return is_whole

    def _path(self, key: CellKey, ending: str) -> Path:
        return self._folder / f"{key.name}.{ending}"

    def _write(self, path: Path, values: dict[str, Any]) -> None:
        write_json(path, values)


def is_unfinished(out: Path, job: dict[str, Any]) -> bool:
    """Whether the folder holds cells of this job. Raises InputError where they cannot be read."""
    path = out / CELLS / JOB
    return path.exists() and not differences(_read(path), job)


def _read(path: Path) -> Any:
    with json_values(path, "give --overwrite to start again") as values:
        return values
