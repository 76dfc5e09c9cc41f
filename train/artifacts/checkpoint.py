"""Checkpoints: a folder that is whole or absent, never a pickle.

    RUN/run.json                                         the configs: model, training, data
    RUN/tokenizer/                                       a copy: the run needs nothing else
    RUN/checkpoints/step-00000500/model.safetensors      weights by name
                                 /optimizer.safetensors  moments, "NAME/exp_avg" ...
                                 /state.json             step, loader state, held-out loss;
                                                         sha256 of both files, and of itself

No random generator state is needed: dropout is seeded at every step from (seed, step, rank), and
the order of the data is a function of the position. Nor does it matter how many processes wrote a
checkpoint, or which part of the model each of them had: weights and moments are gathered by name,
the same from DDP, FSDP2 and one process.

    weights   "encoder.layers.0.attention.qkv.weight"            float32 [3H, H]
    moments   "encoder.layers.0.attention.qkv.weight/exp_avg"    float32 [3H, H]
              "encoder.layers.0.attention.qkv.weight/step"       float32 []
"""

import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clozeline.pipeline.common.config_checks import check_field_names
from clozeline.pipeline.common.errors import DivergedError, InputError, JobFailedError, advice
from clozeline.pipeline.common.json_files import file_sha256, json_values, write_json
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder
from clozeline.train.engine.distributed import full_tensor, shard_like

CHECKPOINTS = "checkpoints"
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
MODEL, OPTIMIZER, STATE = CHECKPOINT_FILES
DAMAGED = "damaged-"  # prefix of a folder that was set aside
CHECKPOINT_NAME = re.compile("step-[0-9]{8,}")


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The state of training besides weights and moments."""

    step: int
    loader: dict[str, Any] = field(default_factory=dict)  # of PhasedLoader; {} before step 1
    heldout_loss: float | None = None  # masked LM + NSP of these weights, if they were evaluated
    elapsed: float = 0.0  # seconds, of a run with a time budget
    running_metrics: list[float] = field(default_factory=list)  # see RunningMetrics.state


@dataclass(frozen=True)
class Snapshot:
    """A copy that further training does not change."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


@torch.no_grad()
def take_snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, is_kept: bool = True
) -> Snapshot:
    """Copy weights and moments; all processes call this, since each may have only a shard.

    The snapshot is empty in a process that does not keep it.
    """
    weights: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}
    # First: after an evaluation FSDP2 has gathered the weights, and this shards them again.
    for name, value in model.state_dict().items():
        _keep(weights, name, value, is_kept)
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            _keep(moments, f"{name}/{moment}", value, is_kept)
    if is_kept and torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()  # the copies are complete
    return Snapshot(weights, moments)


def restore_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]
) -> None:
    """Give the optimizer the moments of a snapshot, by parameter name."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in moments.items():
        name, _, moment = key.rpartition("/")
        by_name.setdefault(name, {})[moment] = value
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            moment: shard_like(parameter, value) for moment, value in by_name.get(name, {}).items()
        }


def _keep(tensors: dict[str, Tensor], name: str, value: Tensor, is_kept: bool) -> None:
    value = full_tensor(value)
    if not is_kept:
        return
    # Into pinned memory, which torch keeps for the next snapshot, a GPU copies several times as
    # fast, and need not finish one tensor before the next one.
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
    tensors[name] = copy.copy_(value.detach(), non_blocking=value.is_cuda)


def save_checkpoint(run: Path, snapshot: Snapshot, state: TrainState) -> Path:
    """Write a checkpoint beside the others; a full disk leaves those as they are.

    Raises JobFailedError where it cannot be written, and DivergedError for weights that are not
    finite: training could not continue from them.
    """
    if name := _not_finite(snapshot.weights):
        raise DivergedError(
            f"{name} is not finite after step {state.step}, so no checkpoint was written. "
            f"{after_divergence(run)}"
        )
    folder = checkpoint_folder(run, state.step)
    try:
        with partial_folder(folder) as partial:
            save_file(snapshot.weights, partial / MODEL)
            save_file(snapshot.moments, partial / OPTIMIZER)
            sums = {name: file_sha256(partial / name) for name in (MODEL, OPTIMIZER)}
            write_json(partial / STATE, {**asdict(state), "files": sums}, seal=True)
            for name in sums:  # safetensors makes them readable by their owner alone
                (partial / name).chmod((partial / STATE).stat().st_mode)
            replace_folder(partial, folder)
    except (OSError, JobFailedError) as error:
        cause = error.__cause__ if isinstance(error, JobFailedError) else error
        raise JobFailedError(
            f"checkpoint {folder} cannot be written ({cause}); the checkpoints before it are "
            f"intact. To continue, {advice(error)} and add --resume."
        ) from error
    return folder


def after_divergence(run: Path) -> str:
    """What to do about a run whose loss or weights are no longer finite."""
    if list_checkpoints(run):
        return "Resume from the newest checkpoint: add --resume and a smaller --learning-rate."
    return "It had no checkpoint yet: start again with a smaller --learning-rate."


def load_weights(folder: Path, *, is_checked: bool = False) -> dict[str, Tensor]:
    """The model's weights by name, on the CPU. Raises InputError where the file is damaged.

    `is_checked`: `check_checkpoint`, which takes longer than reading the file, was just called.
    """
    return _load(folder, MODEL, is_checked=is_checked)


def load_moments(folder: Path, *, is_checked: bool = False) -> dict[str, Tensor]:
    """The optimizer's state as "NAME/exp_avg" and so on, on the CPU; see `load_weights`."""
    return _load(folder, OPTIMIZER, is_checked=is_checked)


def has_moments(folder: Path) -> bool:
    """Whether an intact checkpoint has the optimizer's state; a mean of checkpoints has none."""
    with safe_open(folder / OPTIMIZER, framework="pt") as file:
        return bool(file.keys())


def read_state(folder: Path) -> TrainState:
    """The state of training. Raises InputError where the file is damaged."""
    return _read(folder)[0]


def check_checkpoint(folder: Path) -> TrainState:
    """The state of training; raises InputError naming the first file that is not as written."""
    state, sums = _read(folder)
    for name in sums:
        _check(folder, name, sums)
    return state


def weights_digest(folder: Path) -> str:
    """The sha256 of the weights, as recorded when they were written."""
    return _read(folder)[1][MODEL]


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that it is not listed any more; returns its new path."""
    aside = folder.with_name(DAMAGED + folder.name)
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def list_checkpoints(run: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first; a copy of one has another name."""
    folders = (run / CHECKPOINTS).glob("step-*")
    return sorted((x for x in folders if CHECKPOINT_NAME.fullmatch(x.name)), key=step_of)


def latest_checkpoint(run: Path) -> Path:
    """The last of `list_checkpoints`. Raises InputError where there is none."""
    if checkpoints := list_checkpoints(run):
        return checkpoints[-1]
    raise InputError(
        f"{run} has no checkpoint yet; continue it with `clozeline pretrain ... --resume`."
    )


def remove_old_checkpoints(run: Path, *, keep: int) -> None:
    """Keep the newest `keep` and the best on held-out examples; remove half-written ones."""
    checkpoints = list_checkpoints(run)
    seen = {f: loss for f in checkpoints if (loss := _heldout_loss(f)) is not None}
    best = min(seen, key=seen.__getitem__, default=None)
    for folder in checkpoints[:-keep]:
        if folder != best:  # first its name, so that a kill leaves no half of it
            folder.rename(folder.with_name(f".{folder.name}.partial"))
    for partial in (run / CHECKPOINTS).glob(".*.partial"):  # also of a process that was killed
        shutil.rmtree(partial, ignore_errors=True)


class CheckpointWriter:
    """Writes one checkpoint at a time, in a thread, and removes old ones; a context.

    Training continues meanwhile with its own tensors. An error in a write is raised by the next
    `wait`, and at the end of the block unless the block itself raises.
    """

    def __init__(self, run: Path, *, keep: int) -> None:
        self._run = run
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown()
        if kind is None:
            self.wait()

    @property
    def has_failed(self) -> bool:
        """Whether `wait` would raise at once."""
        write = self._write
        return write is not None and write.done() and write.exception() is not None

    def save(self, snapshot: Snapshot, state: TrainState) -> None:
        """Start writing; the snapshot belongs to the writer from now on. Call `wait` first."""
        assert self._write is None, "two snapshots would be in memory at once"
        self._write = self._thread.submit(self._save, snapshot, state)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raises what writing it raised."""
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def _save(self, snapshot: Snapshot, state: TrainState) -> None:
        save_checkpoint(self._run, snapshot, state)
        remove_old_checkpoints(self._run, keep=self._keep)


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_of(run: Path, step: int) -> Path:
    """The checkpoint of a step; if there is none, raises InputError listing those that exist."""
    folder, existing = checkpoint_folder(run, step), list_checkpoints(run)
    if folder not in existing:
        listed = ", ".join(str(step_of(other)) for other in existing) or "none"
        raise InputError(
            f"{run} has no checkpoint of step {step}; it has: {listed}. Give one of these, or "
            "train with a larger --keep."
        )
    return folder


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """The name of a weight that has a NaN or an infinite number, if there is one.

    By its extremes, which a NaN spoils: a twentieth of what a mask of all its numbers costs.
    """
    extremes = ((name, weight.aminmax()) for name, weight in weights.items() if weight.numel())
    return next((name for name, both in extremes if not all(x.isfinite() for x in both)), None)


def check_finite(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Raises InputError for weights that could only give NaN as an answer."""
    if name := _not_finite(weights):
        raise InputError(
            f"{folder} has weights that are not finite ({name}), so it cannot predict; give "
            "another checkpoint, or train again with a smaller --learning-rate."
        )


def _heldout_loss(folder: Path) -> float | None:
    """The held-out loss; None also if the state is damaged, so that it is never the best."""
    try:
        return read_state(folder).heldout_loss
    except InputError:
        return None


def _read(folder: Path) -> tuple[TrainState, dict[str, str]]:
    with json_values(folder / STATE, _advice(folder), seal=True) as values:
        sums = values.pop("files")
        check_field_names(TrainState, values)
        return TrainState(**values), sums


def _load(folder: Path, name: str, *, is_checked: bool) -> dict[str, Tensor]:
    if not is_checked:
        _check(folder, name, _read(folder)[1])
    try:
        return load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise _damage(folder, name, error) from error


def _check(folder: Path, name: str, sums: dict[str, str]) -> None:
    try:
        if file_sha256(folder / name) == sums[name]:
            return
    except OSError as error:
        raise _damage(folder, name, error) from error
    raise _damage(folder, name, "its content has changed")


def _damage(folder: Path, name: str, what: object) -> InputError:
    return InputError(f"{folder / name} cannot be read ({what}); {_advice(folder)}.")


def _advice(folder: Path) -> str:
    if not folder.exists():
        return "a run that is still training may have removed it, so rerun the command"
    return f"delete {folder} to resume from the checkpoint before it"
