"""The state of training before the first step: where a run resumes, or what a new one begins with.

    Start(existing=..., other=...)  ->  ResumePoint(state, checkpoint, ...)

The files are read and must be intact; they must fit the config that the plan led to.
"""

import sys
from dataclasses import replace
from pathlib import Path

from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.train.artifacts.checkpoint import (
    TrainState,
    check_checkpoint,
    checkpoint_of,
    has_moments,
    latest_checkpoint,
    list_checkpoints,
    set_aside,
    weights_digest,
)
from clozeline.train.artifacts.run import (
    SUMMARY,
    RunConfig,
    positions_note,
    trained_positions,
    with_dropout,
)
from clozeline.train.config import KEPT_FIELDS, RECIPE_FIELDS, PretrainConfig
from clozeline.train.data.phases import data_sets_of, states_of
from clozeline.train.engine.schedule import is_over
from clozeline.train.pretraining.initial_weights import (
    ResumePoint,
    check_initial,
    with_positions,
)
from clozeline.train.pretraining.recipes import Origin
from clozeline.train.pretraining.start import Start


def find_resume_point(start: Start, config: RunConfig, shards: AnyPath) -> ResumePoint:
    """The newest checkpoint of the existing run, else what a new run starts from.

    Where the newest checkpoints are damaged, the one before them is used: some steps are repeated,
    with the same result. `set_damaged_aside` moves them away. Raises InputError rather than damage
    an existing run, and where the files do not fit the config, or `shards` not the tokenizer.
    """
    if start.existing:
        if point := _continued(start, start.existing, config):
            return point
        if start.existing.started_from and not (start.other or start.model_folder):
            raise InputError(
                f"{start.out} has no checkpoint yet, and started from other weights; repeat its "
                "--from, or give --overwrite."
            )
    if start.other and start.origin:
        begin = _from_step if start.cools_down else _from_run
        return begin(start.origin, start.other, config)
    state = TrainState(step=0)
    if start.model_folder:
        digest = check_initial(start.model_folder, config.model, shards)
        return ResumePoint(state=state, model_folder=start.model_folder, started_from=digest)
    return ResumePoint(state=state)


def set_damaged_aside(point: ResumePoint) -> None:
    """Move the damaged checkpoints after the one that is taken, with a warning for each."""
    for checkpoint, reason in point.damaged.items():
        aside = set_aside(checkpoint)
        print(
            f"warning: {reason} It is set aside as {aside.name}; training resumes from step "
            f"{point.state.step}.",
            file=sys.stderr,
        )


def _continued(start: Start, run: RunConfig, config: RunConfig) -> ResumePoint | None:
    """The newest intact checkpoint of the run in `start.out`; None: it has none yet."""
    newest = _newest_intact(start.out)
    if newest is None:
        return None
    checkpoint, state, damaged = newest
    if not has_moments(checkpoint):
        raise InputError(
            f"{checkpoint} has no optimizer state to continue from; give another --out and --from "
            f"{start.out}."
        )
    _check_same(start.out, config, run)
    _check_may_continue(start, config, run, state)
    over = is_over(config.training, state.step, state.elapsed)
    is_complete = over and (start.out / SUMMARY).exists()
    if is_complete:
        _check_nothing_given(start.out, config.training, run.training)
    return ResumePoint(
        state=state,
        checkpoint=checkpoint,
        is_complete=is_complete,
        started_from=run.started_from,
        trained_before=run.trained_before,
        damaged=damaged,
    )


def _newest_intact(out: Path) -> tuple[Path, TrainState, dict[Path, str]] | None:
    """The newest intact checkpoint and its state, and what is wrong with those after it."""
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(list_checkpoints(out)):
        try:
            return checkpoint, check_checkpoint(checkpoint), damaged
        except InputError as error:
            damaged[checkpoint] = str(error)
    if damaged:
        newest = next(iter(damaged.values()))
        raise InputError(f"{out} has no intact checkpoint. {newest} --overwrite starts a new run.")
    return None  # stopped before its first checkpoint: nothing is lost


def _check_same(out: Path, config: RunConfig, run: RunConfig) -> None:
    """Raises InputError where the checkpoint does not fit; the loader checks the data."""
    if fatal := config.differences(run, "model"):
        raise InputError(
            f"{out} holds a run with another model ({'; '.join(fatal)}). Give another --out, or "
            "--overwrite."
        )
    if _turns(config) != _turns(run):
        raise InputError(
            f"{out} holds a run with other phases or another masking rate; leave --phase and "
            "--masked-lm-prob out, or give another --out."
        )
    if run.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{out} was trained with --optimizer {run.training.optimizer}; give that one, or "
            f"another --out with --from {out}."
        )


def _turns(config: RunConfig) -> tuple[float | None, list[tuple[float, int]]]:
    """The masking rate, and the phases with their data sets as numbers."""
    numbers = data_sets_of(config.phases)
    turns = [(phase.start, numbers.index(phase.dataset_digest)) for phase in config.phases]
    return config.training.masked_lm_prob, turns


def _check_may_continue(start: Start, config: RunConfig, run: RunConfig, state: TrainState) -> None:
    """Raises InputError if `--resume` is missing, or the run is already past the last step."""
    out, training = start.out, config.training
    if training.budget is None and state.step > training.max_steps:
        raise InputError(
            f"{out} holds a run at step {state.step}, beyond --max-steps {training.max_steps}; "
            f"give at least {state.step}, or another --out."
        )
    changed = config.differences(run, "training")
    is_finished = is_over(run.training, state.step, state.elapsed)
    if start.resume or (is_finished and not changed):
        return
    raise InputError(
        f"{out} holds a run at step {state.step}"
        + (f" with another config ({'; '.join(changed)})" if changed else "")
        + ". Give --resume to continue it, --overwrite to replace it, or another --out."
    )


def _check_nothing_given(out: Path, training: PretrainConfig, earlier: PretrainConfig) -> None:
    """Raises InputError for options that a finished run would ignore."""
    after, before = (
        {name: getattr(one, name) for name in (*RECIPE_FIELDS, *KEPT_FIELDS)}
        for one in (training, earlier)
    )
    if changed := differences(before, after):
        raise InputError(
            f"{out} is finished, so these options would have no effect: {'; '.join(changed)}. "
            "Leave them out, give --for or --max-steps for more training, or another --out."
        )


def _from_run(origin: Origin, run: RunConfig, config: RunConfig) -> ResumePoint:
    """The weights and moments of another run; data and schedule start from their beginning."""
    if origin.step is None:
        checkpoint = latest_checkpoint(origin.folder)
    else:
        checkpoint = checkpoint_of(origin.folder, origin.step)
    state = check_checkpoint(checkpoint)
    longer = with_positions(run.model, config.model.max_position_embeddings)
    if fatal := _other_than_given(config, replace(run, model=longer), "tokenizer_digest", "model"):
        raise InputError(
            f"{origin} has another model or tokenizer ({fatal}), so its weights do not fit; use "
            "its --preset, and shards built with its tokenizer."
        )
    if longer != run.model:
        changed = differences(run.model.to_dict(), longer.to_dict())
        print(f"note: {'; '.join(changed)}.", file=sys.stderr)
    optimizer, is_whole = run.training.optimizer, has_moments(checkpoint)
    is_same = optimizer == config.training.optimizer
    if is_whole and not is_same:
        print(
            f"note: {origin} was trained with --optimizer {optimizer}; only its weights are taken.",
            file=sys.stderr,
        )
    return ResumePoint(
        state=TrainState(step=0),
        checkpoint=checkpoint,
        has_moments=is_same and is_whole,
        started_from=weights_digest(checkpoint),
        trained_before=trained_positions(run, state),
        trained_positions=_trained_positions(run, state, config),
    )


def _from_step(origin: Origin, run: RunConfig, config: RunConfig) -> ResumePoint:
    """A step of another run: weights, moments and data position, to continue from there.

    Other shards of the same tokenizer are read from their beginning.
    """
    assert origin.step is not None
    checkpoint = checkpoint_of(origin.folder, origin.step)
    state = check_checkpoint(checkpoint)
    if not has_moments(checkpoint):
        raise InputError(f"{origin} has no optimizer state to continue from; give another run.")
    if fatal := _other_than_given(config, run, "tokenizer_digest", "model"):
        raise InputError(
            f"{origin} cannot be continued: {fatal}. Give shards of its tokenizer, with examples "
            f"of up to {run.model.max_position_embeddings} tokens, and no --preset."
        )
    if run.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{origin} was trained with --optimizer {run.training.optimizer}; leave the option out."
        )
    by_digest = {one["dataset_digest"]: one for one in states_of(state.loader)}
    loader = by_digest.get(config.dataset_digest, {})
    return ResumePoint(
        state=replace(state, heldout_loss=None, elapsed=0.0, loader=loader),
        checkpoint=checkpoint,
        started_from=weights_digest(checkpoint),
        trained_before=trained_positions(run, state),
        trained_positions=_trained_positions(run, state, config),
    )


def _trained_positions(run: RunConfig, state: TrainState, config: RunConfig) -> int | None:
    """How many positions the other run has trained, if longer examples now need more of them."""
    trained, longest = trained_positions(run, state), config.data.max_seq_length
    if trained is None or trained >= longest:
        return None
    if run.model.max_position_embeddings >= longest:  # else the other note was printed
        print(f"note: the other run {positions_note(trained)}", file=sys.stderr)
    return trained


def _other_than_given(config: RunConfig, run: RunConfig, *parts: str) -> str:
    """What differs besides dropout, which is not part of the weights."""
    ours, before = (replace(one, model=with_dropout(one.model, 0.0)) for one in (config, run))
    return "; ".join(ours.differences(before, *parts))
