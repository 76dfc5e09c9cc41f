"""Checkpoints: a folder that is whole or absent, never a pickle.

    RUN/run.json                                         the configs: model, training, data
    RUN/tokenizer/                                       a copy: the run needs nothing else
    RUN/checkpoints/step-00000500/model.safetensors      weights by name
                                 /optimizer.safetensors  AdamW's moments, "NAME/exp_avg" ...
                                 /state.json             step, position in the data, held-out loss

There is no state of random generators to keep: dropout is seeded at every step from (seed, step,
rank), and the order of the data is a function of the position.
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.errors import InputError

CHECKPOINTS = "checkpoints"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Where training stands, besides weights and moments."""

    step: int
    next_position: int  # in the endless sequence of examples, see train/order.py
    dataset_digest: str
    tokenizer_digest: str
    seed: int  # of the order of the data
    heldout_loss: float | None = None  # masked LM + NSP, at the last look


def save_checkpoint(
    run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainState
) -> Path:
    """Write a checkpoint beside the others; a full disk leaves those as they are."""
    folder = checkpoint_folder(run, state.step)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir(parents=True)
    try:
        save_file(_weights(model), partial / MODEL)
        save_file(_moments(model, optimizer), partial / OPTIMIZER)
        (partial / STATE).write_text(json.dumps(asdict(state), indent=2) + "\n")
        for file in partial.iterdir():
            _sync(file)
        if folder.exists():  # the same step of an earlier life of this run
            shutil.rmtree(folder)
        partial.rename(folder)
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
    return _load(folder / MODEL)


def load_moments(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer the moments of a checkpoint, by parameter name."""
    stored = _load(folder / OPTIMIZER)
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in stored.items():
        name, _, moment = key.rpartition("/")
        by_name.setdefault(name, {})[moment] = value
    for name, parameter in model.named_parameters():
        moments = by_name[name]
        optimizer.state[parameter] = {
            moment: value.to(parameter.device) for moment, value in moments.items()
        }


def read_state(folder: Path) -> TrainState:
    """Where training stood. Raises InputError where the file is damaged."""
    try:
        return TrainState(**json.loads((folder / STATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{folder / STATE} cannot be read ({error}); delete {folder}.") from error


def list_checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))


def latest_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint, if there is one."""
    return next(reversed(list_checkpoints(run)), None)


def remove_old_checkpoints(run: Path, *, keep: int) -> None:
    """Leave the newest `keep` and the best on held-out examples; and nothing half-written."""
    found = list_checkpoints(run)
    losses = {folder: read_state(folder).heldout_loss for folder in found}
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


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().contiguous() for name, value in model.state_dict().items()}


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{moment}": value.contiguous()
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state[parameter].items()
    }


def _load(path: Path) -> dict[str, Any]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); delete {path.parent} to go on from the checkpoint "
            "before it."
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
