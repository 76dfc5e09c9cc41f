"""`clozeline pretrain`: a data set to a model, in one process or several, across restarts.

A process starts from a checkpoint (or from nothing) and ends at the last step, at a stop request
(SIGTERM, SIGINT: it saves a checkpoint first), or when it is killed. A checkpoint holds weights,
optimizer moments and the position in the data. Nothing else is needed to continue: the order of the
data and dropout are functions of the seed and the step.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, GivenPath, path_of
from clozeline.pipeline.common.progress_bar import print_progress
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.run import RunConfig, remove_run, write_run
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.attempt_store import leave_mark
from clozeline.train.engine.deterministic import deterministic_kernels
from clozeline.train.engine.distributed import World, join_world
from clozeline.train.engine.out_of_memory import out_of_memory_in_one_line
from clozeline.train.engine.precision import resolve_precision
from clozeline.train.monitoring.step_profile import check_profile
from clozeline.train.monitoring.trackers import (
    Track,
    Tracker,
    check_tracker,
    open_tracker,
    remember,
)
from clozeline.train.pretraining.initial_weights import ResumePoint
from clozeline.train.pretraining.open_loader import open_loader
from clozeline.train.pretraining.plan import make_plan
from clozeline.train.pretraining.recipes import CoolDown, check_origin
from clozeline.train.pretraining.run_summary import run_summary
from clozeline.train.pretraining.start import (
    Start,
    excluded_from_all,
    find_resume_point,
    find_start,
    locked_run,
    set_damaged_aside,
)
from clozeline.train.pretraining.trainer import Outcome, Trainer
from clozeline.train.store.local_folder import local_folder


def pretrain(
    shards: GivenPath,
    *,
    out: GivenPath,
    model: BertConfig | str | None = None,
    training: PretrainConfig | Mapping[str, Any] = MappingProxyType({}),
    dropout: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    start_from: GivenPath | None = None,
    init: GivenPath | None = None,
    cool_down_from: str | None = None,
    profile: int = 0,
    track: Track = "none",
) -> Outcome:
    """Train a model on a data set, from the beginning or from the newest checkpoint of `out`.

        >>> training = {"max_steps": 4, "batch_size": 8, "save_every": 2}
        >>> pretrain("work/shards", out="work/run", model="bert-tiny", training=training).step
        4

    `model` is a preset or a config; `training` has fields of PretrainConfig, and the recipe of the
    preset decides the others. With `resume` the run continues with its own model and numbers.

    A new run may start from the weights and moments of another run (`start_from`), from the
    weights of a Hugging Face folder (`init`), or continue another run from a checkpoint, on the
    same data or from the beginning of other shards, with the decay that `training` sets
    (`cool_down_from`: "work/run@8000"). `profile` steps are profiled; `track` also sends the
    metrics to a tracker. Raises InputError for what the user can fix, OutOfMemoryError where a step
    does not fit, DivergedError where the loss is no longer finite.
    """
    with join_world() as world, ExitStack() as stack:
        start = _find_start(
            stack,
            world,
            out,
            resume=resume,
            overwrite=overwrite,
            start_from=start_from,
            init=init,
            cool_down_from=cool_down_from,
        )
        shards = path_of(shards)
        model, training = _planned(shards, start, world, model, training, dropout)
        # From a recorded decay the schedule of a resumed run follows.
        options = {"pretrain": {"cool_down_from": cool_down_from}} if cool_down_from else None
        how: dict[str, Any] = {"profile": profile, "track": track, "options": options}
        return train_run(shards, start, world, model=model, training=training, **how)


def _find_start(
    stack: ExitStack,
    world: World,
    out: GivenPath,
    *,
    start_from: GivenPath | None,
    init: GivenPath | None,
    cool_down_from: str | None,
    resume: bool,
    overwrite: bool,
) -> Start:
    """`find_start`, with local copies of the folders; `stack` holds them and the run's lock."""

    def local(given: GivenPath) -> Path:
        return stack.enter_context(local_folder(given))

    folder = stack.enter_context(local_folder(out, writes=True))
    stack.enter_context(locked_run(folder, world))
    given = Start(
        out=folder,
        resume=resume,
        overwrite=overwrite,
        start_from=local(start_from) if start_from else None,
        init=local(init) if init else None,
        cool_down_from=CoolDown.parse(cool_down_from, local) if cool_down_from else None,
    )
    return find_start(given, world)


def _planned(
    shards: AnyPath,
    start: Start,
    world: World,
    model: BertConfig | str | None,
    training: PretrainConfig | Mapping[str, Any],
    dropout: float | None,
) -> tuple[BertConfig, PretrainConfig]:
    """What is not given, as the command chooses it."""
    numbers = training.to_dict() if isinstance(training, PretrainConfig) else training
    origin = {name: getattr(start, name) for name in ("start_from", "init", "cool_down_from")}
    check_origin({**numbers, **origin})
    if isinstance(model, BertConfig) and isinstance(training, PretrainConfig):
        return model, training
    given = {} if isinstance(training, PretrainConfig) else training
    preset = None if isinstance(model, BertConfig) else model
    plan = world.broadcast_from_main(
        lambda: make_plan(
            *(read_manifest(shards), start, world), preset=preset, dropout=dropout, options=given
        )
    )
    if not isinstance(training, PretrainConfig):
        training = PretrainConfig(**{**given, **plan.values})
    return (model if isinstance(model, BertConfig) else plan.model), training


def train_run(
    shards: AnyPath,
    start: Start,
    world: World,
    *,
    model: BertConfig,
    training: PretrainConfig,
    profile: int = 0,
    track: Track = "none",
    note: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train the run in `start.out`, whose lock rank 0 holds (`locked_run`); raises as `pretrain`.

    A `note` is printed before the first step; `options` of the command are recorded in run.json.
    """
    check_tracker(track)
    manifest = read_manifest(shards)
    _check_length(shards, manifest, model)
    training = replace(training, precision=resolve_precision(training.precision, world.device))
    _check_options(model, training, start)
    training.accumulation(world.size)  # raises InputError for batches that cannot be divided
    config = RunConfig.of(model, training, manifest, shards)
    point = world.broadcast_from_main(lambda: find_resume_point(start, config, shards))
    data = open_loader(shards, config, world, state=point.state.loader)
    if point.is_complete:
        return Outcome(point.state.step, is_new=False, is_complete=True, heldout=None)
    check_profile(profile, training, point.state.step)
    with deterministic_kernels(training.deterministic):
        excluded = excluded_from_all(start, point, config)
        given = options or (start.existing.options if start.existing else {})
        config = replace(config, **point.origin, excluded=excluded, options=given)
        with out_of_memory_in_one_line(_step_in_words(config, world), _less_memory(training)):
            trainer = Trainer(
                start.out,
                config,
                world,
                data=data,
                start=point,
                prepare=lambda: _write_folder(start, point, config, shards, track),
                profile=profile if world.is_main else 0,
            )
            if world.is_main:
                print_progress("\n".join(filter(None, [note, *run_summary(trainer, config)])))
            return trainer.train()


def _step_in_words(config: RunConfig, world: World) -> str:
    rows, length = config.training.rows_per_pass(world.size), config.data.max_seq_length
    return f"a step with {counted(rows, 'example')} of {length} tokens per forward pass"


def _less_memory(training: PretrainConfig) -> str:
    """What to do about a step that does not fit."""
    remedy = "give a smaller --micro-batch-size"
    return remedy + ", or --activation-checkpointing" * (not training.activation_checkpointing)


def _write_folder(
    start: Start, point: ResumePoint, config: RunConfig, shards: AnyPath, track: Track
) -> Tracker | None:
    """Called once the model is built, so that a failure before that leaves the old run alone.

    A tracker that does not start leaves it alone, too.
    """
    is_new = start.existing is None
    tracker = open_tracker(track, start.out, config.training.to_dict(), is_new=is_new)
    set_damaged_aside(point)
    if is_new:
        remove_run(start.out)
    write_run(start.out, config, load_tokenizer(shards / TOKENIZER))
    leave_mark(start.out)  # after run.json, without which the folder is not recognized
    if tracker:
        remember(start.out, track, tracker)
    return tracker


def _check_length(shards: AnyPath, manifest: Manifest, model: BertConfig) -> None:
    longest = manifest.config.max_seq_length
    if longest > model.max_position_embeddings:
        raise InputError(
            f"{shards} has examples of {longest} tokens, but the model reads at most "
            f"{model.max_position_embeddings} (max_position_embeddings); use shorter examples, or "
            "a model with more positions."
        )


def _check_options(model: BertConfig, training: PretrainConfig, start: Start) -> None:
    """Checked before anything is written: what only model, device and start can show."""
    if training.word_vectors and (start.other or start.init):
        given = start.init or start.start_from or start.cool_down_from
        raise InputError(
            f"--word-vectors initializes a new model, and this one starts from {given}; give "
            "--no-word-vectors."
        )
    if training.word_vectors and start.existing and not start.existing.training.word_vectors:
        raise InputError(
            f"--word-vectors initializes a new model, and the run in {start.out} began without "
            "them; give --no-word-vectors."
        )
    has_kernel = torch.cuda.is_available() and training.precision != "fp32"
    if training.unpadded and has_kernel and model.attention_probs_dropout_prob:
        raise InputError(
            "--unpadded: attention over unpadded rows has no dropout on CUDA, but the model uses "
            f"{model.attention_probs_dropout_prob}; give --dropout 0 or --no-unpadded."
        )
