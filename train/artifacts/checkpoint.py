"""Checkpoints: a folder that is whole or absent, never a pickle.

    RUN/run.json                                         the configs: model, training, data
    RUN/tokenizer/                                       a copy: the run needs nothing else
    RUN/checkpoints/step-00000500/model.safetensors      weights by name
                                 /optimizer.safetensors  moments, "NAME/exp_avg" ...
                                 /state.json             step, position in the data, held-out loss;
                                                         sha256 of both files, and of itself

There is no state of random generators to keep: dropout is seeded at every step from (seed, step,
rank), and the order of the data is a function of the position. Nor does it matter how many
processes wrote it, and which part of the model each of them had (see `snapshot.py`).
"""

import hashlib
import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.common.errors import InputError
from train.artifacts.snapshot import Snapshot

CHECKPOINTS = "checkpoints"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
DAMAGED = "damaged-"  # before the name of a folder that was set aside


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Where training stands, besides weights and moments."""

    step: int
    next_position: int  # in the endless sequence of examples, see train/data/order.py
    dataset_digest: str
    tokenizer_digest: str
    seed: int  # of the order of the data
    skipped_shards: list[str] = field(default_factory=list)  # the order goes on without them
    heldout_loss: float | None = None  # masked LM + NSP of these weights, if they were looked at
    elapsed: float = 0.0  # seconds, of a run with a time budget
    running_metrics: list[float] = field(default_factory=list)  # see RunningMetrics.state


def save_checkpoint(run: Path, snapshot: Snapshot, state: TrainState) -> Path:
    """Write a checkpoint beside the others; a full disk leaves those as they are.

    Raises InputError where it cannot be written, and for weights that are not finite: nothing could
    go on from them.
    """
    _check_finite(snapshot, state.step)
    folder = checkpoint_folder(run, state.step)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        save_file(snapshot.weights, partial / MODEL)
        save_file(snapshot.moments, partial / OPTIMIZER)
        sums = {name: _sha256(partial / name) for name in (MODEL, OPTIMIZER)}
        facts = _sealed({**asdict(state), "files": sums})
        (partial / STATE).write_text(json.dumps(facts, indent=2) + "\n")
        for file in (*partial.iterdir(), partial):
            _sync(file)
        if folder.exists():  # the same step of an earlier life, which began before it
            shutil.rmtree(folder)
        partial.rename(folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"checkpoint {folder} cannot be written ({error}); the checkpoints before it are "
            "whole. Make room, then go on with --resume."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The model's weights by name, on the CPU. Raises InputError where the file is damaged."""
    return _load(folder, MODEL)


def load_moments(folder: Path) -> dict[str, Tensor]:
    """The optimizer's state as "NAME/exp_avg" and so on, on the CPU.

    Raises InputError where the file is damaged.
    """
    return _load(folder, OPTIMIZER)


def read_state(folder: Path) -> TrainState:
    """Where training stood. Raises InputError where the file is damaged."""
    return _read(folder)[0]


def check_checkpoint(folder: Path) -> TrainState:
    """Where training stood, once each file is seen to be what was written.

    Raises InputError that names the file which is not.
    """
    state, sums = _read(folder)
    for name in sums:
        _check(folder, name, sums)
    return state


def weights_digest(folder: Path) -> str:
    """The sha256 of the weights, as noted when they were written."""
    return _read(folder)[1][MODEL]


def set_aside(folder: Path) -> Path:
    """Take a damaged checkpoint out of the row; where it is now."""
    aside = folder.with_name(DAMAGED + folder.name)
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run that were written to their end, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))


def latest_checkpoint(run: Path) -> Path | None:
    """The newest of them, if there is one."""
    return next(reversed(list_checkpoints(run)), None)


def remove_old_checkpoints(run: Path, *, keep: int) -> None:
    """Leave the newest `keep` and the best on held-out examples; and nothing half-written."""
    found = list_checkpoints(run)
    losses = {folder: _heldout_loss(folder) for folder in found}
    seen = {folder: loss for folder, loss in losses.items() if loss is not None}
    best = min(seen, key=lambda folder: seen[folder], default=None)
    for folder in found[:-keep]:
        if folder != best:
            shutil.rmtree(folder)
    for partial in (run / CHECKPOINTS).glob(".*.partial"):  # of a process that was killed
        shutil.rmtree(partial, ignore_errors=True)


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def _check_finite(snapshot: Snapshot, step: int) -> None:
    for name, weight in snapshot.weights.items():
        if not weight.isfinite().all():
            raise InputError(
                f"{name} is not finite after step {step}, so no checkpoint was written. Go on from "
                "the one before it, with --resume and a smaller --learning-rate."
            )


def _heldout_loss(folder: Path) -> float | None:
    """None also where the state is damaged: such a checkpoint is not the best one."""
    try:
        return read_state(folder).heldout_loss
    except InputError:
        return None


def _read(folder: Path) -> tuple[TrainState, dict[str, str]]:
    try:
        facts = json.loads((folder / STATE).read_text())
        if _sealed(facts) != facts:
            raise ValueError("it is not what was written")
        facts.pop("sha256")
        sums = facts.pop("files")
        return TrainState(**facts), sums
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damage(folder, STATE, error) from error


def _load(folder: Path, name: str) -> dict[str, Tensor]:
    _check(folder, name, _read(folder)[1])
    try:
        return load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise _damage(folder, name, error) from error


def _check(folder: Path, name: str, sums: dict[str, str]) -> None:
    try:
        if _sha256(folder / name) == sums[name]:
            return
    except OSError as error:
        raise _damage(folder, name, error) from error
    raise _damage(folder, name, "it is not what was written")


def _damage(folder: Path, name: str, what: object) -> InputError:
    return InputError(
        f"{folder / name} cannot be read ({what}); delete {folder} to go on from the checkpoint "
        "before it."
    )


def _sealed(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with the sha256 of all of them."""
    bare = {name: value for name, value in facts.items() if name != "sha256"}
    written = json.dumps(bare, sort_keys=True).encode()
    return {**bare, "sha256": hashlib.sha256(written).hexdigest()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
