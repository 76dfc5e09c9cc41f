"""`clozeline pretrain`: a data set to a model, in one process or several, across restarts.

A process starts from a checkpoint (or from nothing) and ends at the last step, at a stop request
(SIGTERM, SIGINT: it saves a checkpoint first), or when it is killed. A checkpoint holds weights,
optimizer moments and the position in the data. Nothing else is needed to continue: the order of the
data and dropout are functions of the seed and the step.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.run import (
    RUN,
    RunConfig,
    check_run_folder,
    read_run,
    remove_run,
    write_run,
)
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.distributed import World, is_restart, join_world
from clozeline.train.engine.out_of_memory import out_of_memory_in_one_line
from clozeline.train.engine.precision import resolve_precision
from clozeline.train.monitoring.trackers import Track, check_tracker
from clozeline.train.pretraining.cool_down import CoolDown
from clozeline.train.pretraining.first_screen import first_screen
from clozeline.train.pretraining.micro_batch import find_micro_batch_size, with_found_size
from clozeline.train.pretraining.open_loader import open_loader
from clozeline.train.pretraining.resume import find_resume_point
from clozeline.train.pretraining.trainer import Outcome, Trainer


def pretrain(
    shards: Path,
    *,
    out: Path,
    model: BertConfig,
    training: PretrainConfig,
    resume: bool = False,
    overwrite: bool = False,
    start_from: Path | None = None,
    init: Path | None = None,
    cool_down_from: CoolDown | None = None,
    note: str | None = None,
    profile: int = 0,
    track: Track = "none",
    options: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train a model on a data set, from the beginning or from the newest checkpoint of `out`.

    A new run may start from the weights and moments of another run (`start_from`), from the
    weights of a Hugging Face folder (`init`), or continue another run from a checkpoint, on the
    same data, with the decay that `training` sets (`cool_down_from`). A `note` is printed
    before the first step; `profile` steps are profiled; `track` also sends the metrics to a
    tracker; `options` of the command are recorded in run.json. Raises InputError for everything
    the user can fix, OutOfMemoryError where a step does not fit, and DivergedError where the loss
    is no longer finite.
    """
    check_tracker(track)
    sources: dict[str, Any] = {"start_from": start_from, "init": init}
    sources |= {"cool_down_from": cool_down_from, "shards": shards}
    manifest = read_manifest(shards)
    _check_length(shards, manifest, model)
    with join_world() as world, ExitStack() as stack:
        training = _with_precision(training, model, world)
        world.broadcast_from_main(lambda: stack.enter_context(_own_folder(out)))
        read_config = partial(_config, out, model, training, manifest, world)
        if world.any(is_restart()):  # torchrun counts only this machine's restarts
            resume = True  # `out` holds the run that just failed, or still an older one
            overwrite = overwrite and not _is_run_of(out, read_config(overwrite=False), world)
        config = read_config(overwrite=overwrite)
        existing: dict[str, Any] = {"resume": resume, "overwrite": overwrite}
        find_start = partial(find_resume_point, out, config, **sources, **existing)
        start = world.broadcast_from_main(find_start)
        data = open_loader(shards, config.training, world, state=start.state.loader)
        if start.is_complete:
            return Outcome(start.state.step, is_new=False, is_complete=True, heldout=None)
        config = replace(_with_micro_batch(config, world), started_from=start.started_from)
        config = replace(config, options=options or {})
        world.broadcast_from_main(lambda: _write_folder(out, config, shards, replaces=overwrite))
        how: dict[str, Any] = {"data": data, "start": start, "profile": profile, "track": track}
        return _train(shards, out, config, world, note=note, **how)


def _with_precision(training: PretrainConfig, model: BertConfig, world: World) -> PretrainConfig:
    """Resolve `auto` for the device. Raises InputError if --unpadded cannot run there."""
    resolved = resolve_precision(training.precision, world.device)
    training = replace(training, precision=resolved)
    _check_unpadded(model, training)
    return training


def _train(
    shards: Path, out: Path, config: RunConfig, world: World, *, note: str | None, **how: Any
) -> Outcome:
    with _out_of_memory_in_one_line(config, world):
        trainer = Trainer(shards, out, config, world, **how)
        if world.is_main:
            lines = first_screen(trainer, config)
            print("\n".join([note, *lines] if note else lines), file=sys.stderr)
        return trainer.train()


def _is_run_of(out: Path, config: RunConfig, world: World) -> bool:
    """Whether `out` holds a run of this config."""
    parts = ("model", "training", "data", "tokenizer_digest", "dataset_digest")
    return world.broadcast_from_main(
        lambda: (out / RUN).exists() and not config.differences(read_run(out), *parts)
    )


def _config(
    out: Path,
    model: BertConfig,
    training: PretrainConfig,
    manifest: Manifest,
    world: World,
    *,
    overwrite: bool,
) -> RunConfig:
    """The config of the run, with the micro-batch size that an earlier process found.

    Raises InputError for batches that cannot be divided equally.
    """
    found = None
    if training.micro_batch_size in (None, "auto") and not overwrite:
        found = world.broadcast_from_main(
            lambda: read_run(out).found_micro_batch_size if (out / RUN).exists() else None
        )
    for size in training.batch_sizes:
        training.accumulation(world.size, size)
    if found is not None:
        training = with_found_size(training, found, world)
    config = RunConfig.of(model, training, manifest)
    return replace(config, found_micro_batch_size=found)


def _with_micro_batch(config: RunConfig, world: World) -> RunConfig:
    """The config, with `--micro-batch-size auto` resolved to a number."""
    if config.training.micro_batch_size != "auto":
        return config
    found = find_micro_batch_size(config, world)
    training = with_found_size(config.training, found, world)
    if world.is_main:
        passes = training.accumulation(world.size)
        print(
            f"note: --micro-batch-size {found}: {passes} forward pass{'es' * (passes != 1)} per "
            "step and process.",
            file=sys.stderr,
        )
    return replace(config, training=training, found_micro_batch_size=found)


def _out_of_memory_in_one_line(config: RunConfig, world: World) -> AbstractContextManager[None]:
    training = config.training
    remedy = "give a smaller --micro-batch-size, or auto"
    if not training.activation_checkpointing:
        remedy += ", or --activation-checkpointing"
    rows = training.rows_per_pass(world.size)
    what = f"a step with {rows} examples of {config.data.max_seq_length} tokens per forward pass"
    return out_of_memory_in_one_line(what, remedy)


@contextmanager
def _own_folder(out: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises InputError if the folder is neither empty nor a run."""
    check_run_folder(out)
    with locked_folder(out):
        yield


def _write_folder(out: Path, config: RunConfig, shards: Path, *, replaces: bool) -> None:
    """Called last, so that a new run that is refused leaves the old one alone."""
    if replaces:
        remove_run(out)
    write_run(out, config, load_tokenizer(shards / TOKENIZER))


def _check_length(shards: Path, manifest: Manifest, model: BertConfig) -> None:
    longest = manifest.config.max_seq_length
    if longest > model.max_position_embeddings:
        raise InputError(
            f"{shards} has examples of {longest} tokens, but the model reads at most "
            f"{model.max_position_embeddings} (max_position_embeddings); use shorter examples, or "
            "a model with more positions."
        )


def _check_unpadded(model: BertConfig, training: PretrainConfig) -> None:
    """Checked before anything is written; otherwise attention fails in the first step."""
    has_kernel = torch.cuda.is_available() and training.precision != "fp32"
    if training.unpadded and has_kernel and model.attention_probs_dropout_prob:
        raise InputError(
            "--unpadded: attention over unpadded rows has no dropout on CUDA, but the model uses "
            f"{model.attention_probs_dropout_prob}; give --dropout 0, or leave --unpadded out."
        )
