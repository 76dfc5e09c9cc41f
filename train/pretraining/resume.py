"""Where training starts: from nothing, a checkpoint of its own run, or the weights of another."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import (
    TrainState,
    check_checkpoint,
    checkpoint_of,
    list_checkpoints,
    set_aside,
    weights_digest,
)
from clozeline.train.artifacts.run import SUMMARY, RunConfig, read_run
from clozeline.train.engine.schedule import is_over
from clozeline.train.pretraining.cool_down import CoolDown
from clozeline.train.pretraining.initial_weights import check_initial
from clozeline.train.pretraining.more_positions import note_of, with_positions


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The state of training before the first step of this process."""

    state: TrainState
    checkpoint: Path | None = None  # has the weights; None: they come from `init` or the seed
    init: Path | None = None  # a Hugging Face folder
    has_moments: bool = True  # the checkpoint's moments fit the optimizer
    is_complete: bool = False  # there is nothing left to do
    started_from: str | None = None  # see RunConfig


def find_resume_point(
    out: Path,
    config: RunConfig,
    *,
    shards: Path,
    resume: bool,
    overwrite: bool = False,
    start_from: Path | None = None,
    init: Path | None = None,
    cool_down_from: CoolDown | None = None,
) -> ResumePoint:
    """The newest checkpoint in `out`, else what a new run starts from.

    With `overwrite`, checkpoints in `out` are ignored. A new run starts from another run
    (`start_from`), a step of another run (`cool_down_from`), a Hugging Face folder (`init`), whose
    tokenizer `shards` must have, or from the seed.

    A damaged checkpoint is set aside with a warning on standard error and the one before it is
    used: some steps are repeated, with the same result. Raises InputError rather than damage an
    existing run.
    """
    other = cool_down_from.run if cool_down_from else start_from
    if other and other.resolve() == out.resolve():
        option = "--cool-down-from" if cool_down_from else "--start-from"
        raise InputError(f"{option} and --out are both {out}; give the new run a folder.")
    if not overwrite and (out / "run.json").exists():
        there = read_run(out)
        _check_not_averaged(out, there)
        if found := _newest_whole(out):
            checkpoint, state = found
            _check_same(out, config, there)
            _check_may_continue(out, config, there, state, resume=resume)
            over = is_over(config.training, state.step, state.elapsed)
            return ResumePoint(
                state=state,
                checkpoint=checkpoint,
                is_complete=over and (out / SUMMARY).exists(),
                started_from=there.started_from,
            )
    if cool_down_from:
        return _from_step(cool_down_from, config)
    if start_from:
        return _from_other_run(start_from, config)
    if init:
        digest = check_initial(init, config.model, shards)
        return ResumePoint(state=TrainState(step=0), init=init, started_from=digest)
    return ResumePoint(state=TrainState(step=0))


def _check_not_averaged(out: Path, there: RunConfig) -> None:
    if there.averaged:
        raise InputError(
            f"{out} is an average of checkpoints, without the optimizer's state to continue "
            f"from; give another --out and --start-from {out}."
        )


def _newest_whole(out: Path) -> tuple[Path, TrainState] | None:
    checkpoints = list_checkpoints(out)
    errors: list[InputError] = []
    for checkpoint in reversed(checkpoints):
        try:
            state = check_checkpoint(checkpoint)
        except InputError as error:
            errors.append(error)
            continue
        for damaged, reason in zip(reversed(checkpoints), errors, strict=False):
            aside = set_aside(damaged)
            print(
                f"warning: {reason} It is set aside as {aside.name}; training resumes from step "
                f"{state.step}.",
                file=sys.stderr,
            )
        return checkpoint, state
    if errors:
        raise InputError(
            f"{out} has no intact checkpoint. {errors[0]} --overwrite starts a new run."
        )
    return None  # stopped before its first checkpoint: nothing is lost


def _check_same(out: Path, config: RunConfig, there: RunConfig) -> None:
    """Raises InputError where the checkpoint does not fit; the loader checks the data."""
    if fatal := config.differences(there, "model"):
        raise InputError(
            f"{out} holds a run with another model ({'; '.join(fatal)}). Give another --out, or "
            "--overwrite."
        )
    if there.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{out} has the moments of --optimizer {there.training.optimizer}; give that one, or "
            f"another --out with --start-from {out}."
        )


def _check_may_continue(
    out: Path, config: RunConfig, there: RunConfig, state: TrainState, *, resume: bool
) -> None:
    """Raises InputError if `--resume` is missing, or the run is already past the last step."""
    training = config.training
    if training.budget is None and state.step > training.max_steps:
        raise InputError(
            f"{out} holds a run at step {state.step}, beyond --max-steps {training.max_steps}; "
            f"give at least {state.step}, or another --out."
        )
    changed = config.differences(there, "training")
    is_finished = is_over(there.training, state.step, state.elapsed)
    if resume or (is_finished and not changed):
        return
    raise InputError(
        f"{out} holds a run at step {state.step}"
        + (f" with another config ({'; '.join(changed)})" if changed else "")
        + ". Give --resume to continue it, --overwrite to replace it, or another --out."
    )


def _from_other_run(other: Path, config: RunConfig) -> ResumePoint:
    """The weights and moments of another run; data and schedule start from their beginning.

    Raises InputError where it has another model or tokenizer.
    """
    there = read_run(other)
    checkpoints = list_checkpoints(other)
    if not checkpoints:
        raise InputError(f"{other} has no checkpoint to start from yet; finish that run first.")
    check_checkpoint(checkpoints[-1])
    longer = with_positions(there.model, config.model.max_position_embeddings)
    if fatal := _without_dropout(config).differences(
        _without_dropout(replace(there, model=longer)), "tokenizer_digest", "model"
    ):
        raise InputError(
            f"{other} has another model or tokenizer ({'; '.join(fatal)}), so its weights do not "
            "fit; use its --preset, and shards built with its tokenizer."
        )
    if longer != there.model:
        print(f"note: {note_of(there.model, longer)}.", file=sys.stderr)
    return ResumePoint(
        state=TrainState(step=0),
        checkpoint=checkpoints[-1],
        has_moments=not there.averaged and there.training.optimizer == config.training.optimizer,
        started_from=weights_digest(checkpoints[-1]),
    )


def _from_step(start: CoolDown, config: RunConfig) -> ResumePoint:
    """A step of another run: weights, moments and data position, to continue from there.

    Raises InputError where the run has another model, data set or optimizer.
    """
    there = read_run(start.run)
    if there.averaged:
        raise InputError(f"{start.run} is an average; give the run that it was averaged from.")
    checkpoint = checkpoint_of(start.run, start.step)
    state = check_checkpoint(checkpoint)
    if differs := _without_dropout(config).differences(
        _without_dropout(there), "tokenizer_digest", "dataset_digest", "model"
    ):
        raise InputError(
            f"{start} cannot be continued: {'; '.join(differs)}. Give the shards of that run, and "
            "no --preset."
        )
    if there.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{start} has the moments of --optimizer {there.training.optimizer}; leave it out."
        )
    return ResumePoint(
        state=replace(state, heldout_loss=None, elapsed=0.0),
        checkpoint=checkpoint,
        started_from=weights_digest(checkpoint),
    )


def _without_dropout(config: RunConfig) -> RunConfig:
    """Dropout is not part of the weights: a run need not have that of the run it starts from."""
    model = replace(config.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return replace(config, model=model)
