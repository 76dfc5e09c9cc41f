"""Where a run starts, decided once, and the state of training there.

    a run in --out, unless --overwrite    its newest intact checkpoint; wants --resume
    else --cool-down-from RUN@STEP        weights, moments and position in the data of that step;
                                          the beginning of other data
    else --start-from RUN                 weights and moments of its newest checkpoint
    else --init FOLDER                    weights alone
    else                                  the seed

`find_start` reads the configs, from which the plan takes its numbers. `find_resume_point` checks
that the folder's files are intact and fit the config that the plan led to.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.paths import AnyPath
from clozeline.train.artifacts.checkpoint import (
    TrainState,
    check_checkpoint,
    checkpoint_of,
    has_moments,
    list_checkpoints,
    read_newest,
    set_aside,
    weights_digest,
)
from clozeline.train.artifacts.run import (
    RUN,
    SUMMARY,
    RunConfig,
    check_run_folder,
    positions_note,
    read_run,
    trained_positions,
    with_dropout,
)
from clozeline.train.data.phased_loader import state_of
from clozeline.train.data.phases import data_sets_of
from clozeline.train.engine.attempt_store import STARTED, keep_own_mark
from clozeline.train.engine.distributed import World, is_restart
from clozeline.train.engine.schedule import is_over
from clozeline.train.pretraining.initial_weights import ResumePoint, check_initial
from clozeline.train.pretraining.more_positions import note_of, with_positions
from clozeline.train.pretraining.recipes import CoolDown


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run starts from, as it is given, and the configs of the runs among it."""

    out: Path
    resume: bool = False
    overwrite: bool = False
    start_from: Path | None = None
    cool_down_from: CoolDown | None = None
    init: Path | None = None  # a Hugging Face folder
    #: Found by `find_start`: the run in `out` that is continued, with its `cool_down_from`, and the
    #: run of `start_from` or `cool_down_from`.
    existing: RunConfig | None = None
    other: RunConfig | None = None


@contextmanager
def locked_run(out: Path, world: World) -> Iterator[None]:
    """Hold the folder's lock in rank 0; the mark that an earlier command left there is removed.

    Raises InputError where another process has it, and if the folder is neither empty nor a run.
    """
    has_failed = _has_failed(world)
    with ExitStack() as stack:

        def lock() -> None:
            check_run_folder(out)
            stack.enter_context(locked_folder(out))
            keep_own_mark(out, world.store, has_failed=has_failed)

        world.broadcast_from_main(lock)
        yield


def find_start(given: Start, world: World) -> Start:
    """The start with the configs of its runs; rank 0 reads them for all processes.

    A process that torchrun restarted resumes the run in `out` if an earlier attempt of the same
    command wrote it, and it has a checkpoint. A run without a checkpoint counts only with `resume`:
    its numbers may be the reason why it failed. Raises InputError for folders without a run, where
    the other run is `out` itself, and for both `resume` and `overwrite`, one of which would lose
    the checkpoints that the other continues.
    """
    if given.resume and given.overwrite:
        raise InputError("--resume and --overwrite exclude each other; give one.")
    has_failed = _has_failed(world)
    out = given.out
    other = given.cool_down_from.run if given.cool_down_from else given.start_from

    def find() -> Start:
        if other and other.resolve() == out.resolve():
            option = "--cool-down-from" if given.cool_down_from else "--start-from"
            raise InputError(f"{option} and --out are both {out}; give the new run another --out.")
        has_run = (out / RUN).exists() and (given.resume or bool(list_checkpoints(out)))
        is_own = has_failed and (out / STARTED).exists()
        is_read = has_run and (is_own or not given.overwrite)
        existing = read_run(out) if is_read else None
        return replace(
            given,
            resume=given.resume or is_own,
            cool_down_from=given.cool_down_from or cooled_from(existing),
            existing=existing,
            other=read_run(other) if other else None,
        )

    return world.broadcast_from_main(find)


def cooled_from(run: RunConfig | None) -> CoolDown | None:
    """The RUN@STEP from which a run was cooled down, if its command recorded that."""
    options = run.options.get("pretrain", {}) if run else {}
    text = options.get("cool_down_from")
    return CoolDown.parse(text, Path) if text else None


def _has_failed(world: World) -> bool:
    """Whether torchrun restarted a process; it counts only the restarts of each machine."""
    return world.any(is_restart())


def find_resume_point(start: Start, config: RunConfig, shards: AnyPath) -> ResumePoint:
    """The newest checkpoint of the existing run, else what a new run starts from.

    Where the newest checkpoints are damaged, the one before them is used: some steps are repeated,
    with the same result. `set_damaged_aside` moves them away. Raises InputError rather than damage
    an existing run, and where the files do not fit the config, or `shards` not the tokenizer.
    """
    out, there = start.out, start.existing
    if there:
        if found := _newest_whole(out):
            checkpoint, state, damaged = found
            if not has_moments(checkpoint):
                raise InputError(
                    f"{checkpoint} has no optimizer state to continue from; give another --out "
                    f"and --start-from {out}."
                )
            _check_same(out, config, there)
            _check_may_continue(start, config, there, state)
            if config.training.budget and state.step and not state.elapsed:
                print(
                    f"note: --for {config.training.for_} and the schedule begin now: the first "
                    f"{state.step:,} steps were counted, and their time is not known.",
                    file=sys.stderr,
                )
            over = is_over(config.training, state.step, state.elapsed)
            return ResumePoint(
                state=state,
                checkpoint=checkpoint,
                is_complete=over and (out / SUMMARY).exists(),
                started_from=there.started_from,
                trained_before=there.trained_before,
                damaged=damaged,
            )
        if there.started_from and not (start.other or start.init):
            raise InputError(
                f"{out} has no checkpoint yet, and started from other weights; repeat its "
                "--start-from, --cool-down-from or --init, or give --overwrite."
            )
    if start.cool_down_from and start.other:
        return _from_step(start.cool_down_from, start.other, config)
    if start.start_from and start.other:
        return _from_other_run(start.start_from, start.other, config)
    state = TrainState(step=0)
    if start.init:
        digest = check_initial(start.init, config.model, shards)
        return ResumePoint(state=state, init=start.init, started_from=digest)
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


def excluded_from_all(start: Start, point: ResumePoint, config: RunConfig) -> Mapping[str, int]:
    """The excluded texts of the config without those that the initial weights may have read."""
    if point.started_from is None:
        return config.excluded
    earlier = [there.excluded for there in (start.existing, start.other) if there]
    return {
        digest: found
        for digest, found in config.excluded.items()
        if earlier and not start.init and all(digest in texts for texts in earlier)
    }


def _newest_whole(out: Path) -> tuple[Path, TrainState, dict[Path, str]] | None:
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


def _check_same(out: Path, config: RunConfig, there: RunConfig) -> None:
    """Raises InputError where the checkpoint does not fit; the loader checks the data."""
    if fatal := config.differences(there, "model"):
        raise InputError(
            f"{out} holds a run with another model ({'; '.join(fatal)}). Give another --out, or "
            "--overwrite."
        )
    if _turns(config) != _turns(there):
        here, then = map(_phases_in_words, (config, there))
        raise InputError(
            f"{out} holds a run with other phases ({then} there, {here} now); leave --phase and "
            "--masked-lm-prob out, or give another --out."
        )
    if there.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{out} was trained with --optimizer {there.training.optimizer}; give that one, or "
            f"another --out with --start-from {out}."
        )


def _check_may_continue(
    start: Start, config: RunConfig, there: RunConfig, state: TrainState
) -> None:
    """Raises InputError if `--resume` is missing, or the run is already past the last step."""
    out, training = start.out, config.training
    if training.budget is None and state.step > training.max_steps:
        raise InputError(
            f"{out} holds a run at step {state.step}, beyond --max-steps {training.max_steps}; "
            f"give at least {state.step}, or another --out."
        )
    changed = config.differences(there, "training")
    is_finished = is_over(there.training, state.step, state.elapsed)
    if start.resume or (is_finished and not changed):
        return
    raise InputError(
        f"{out} holds a run at step {state.step}"
        + (f" with another config ({'; '.join(changed)})" if changed else "")
        + ". Give --resume to continue it, --overwrite to replace it, or another --out."
    )


def _turns(config: RunConfig) -> tuple[float | None, list[tuple[float, int]]]:
    """The masking rate, and when which data set, by number, is read; the loaders compare data."""
    numbers = list(data_sets_of(config.phases))
    turns = [(phase.start, numbers.index(phase.dataset_digest)) for phase in config.phases]
    return config.training.masked_lm_prob, turns


def _phases_in_words(config: RunConfig) -> str:
    rate = config.training.masked_lm_prob
    masks = "" if rate is None else f", {rate:g} masked"
    return "; ".join(f"{x.max_seq_length} tokens{masks} from {x.start:g}" for x in config.phases)


def _from_other_run(run: Path, there: RunConfig, config: RunConfig) -> ResumePoint:
    """The weights and moments of another run; data and schedule start from their beginning."""
    checkpoint, state = read_newest(run, lambda folder: (folder, check_checkpoint(folder)))
    longer = with_positions(there.model, config.model.max_position_embeddings)
    if fatal := _differences(config, replace(there, model=longer), "tokenizer_digest", "model"):
        raise InputError(
            f"{run} has another model or tokenizer ({fatal}), so its weights do not fit; use its "
            "--preset, and shards built with its tokenizer."
        )
    if longer != there.model:
        print(f"note: {note_of(there.model, longer)}.", file=sys.stderr)
    seed, read = config.training.seed, data_sets_of(there.phases).keys()
    if seed == there.training.seed and read & data_sets_of(config.phases).keys():
        print(
            f"note: {run} already read these examples in this order; --seed {seed + 1} shuffles "
            "them differently.",
            file=sys.stderr,
        )
    optimizer = there.training.optimizer
    is_same, is_whole = optimizer == config.training.optimizer, has_moments(checkpoint)
    if not is_same and is_whole:
        print(
            f"note: {run} was trained with --optimizer {optimizer}; only its weights are taken.",
            file=sys.stderr,
        )
    return ResumePoint(
        state=TrainState(step=0),
        checkpoint=checkpoint,
        has_moments=is_same and is_whole,
        started_from=weights_digest(checkpoint),
        trained_before=trained_positions(there, state),
        trained_positions=_trained_positions(there, state, config),
    )


def _from_step(step: CoolDown, there: RunConfig, config: RunConfig) -> ResumePoint:
    """A step of another run: weights, moments and data position, to continue from there.

    Other shards of the same tokenizer are read from their beginning.
    """
    checkpoint = checkpoint_of(step.run, step.step)
    state = check_checkpoint(checkpoint)
    if not has_moments(checkpoint):
        raise InputError(f"{step} has no optimizer state to continue from; give another run.")
    if fatal := _differences(config, there, "tokenizer_digest", "model"):
        raise InputError(
            f"{step} cannot be continued: {fatal}. Give shards of its tokenizer, with examples of "
            f"up to {there.model.max_position_embeddings} tokens, and no --preset."
        )
    if there.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{step} was trained with --optimizer {there.training.optimizer}; leave the option out."
        )
    loader = state_of(state.loader, config.dataset_digest)
    return ResumePoint(
        state=replace(state, heldout_loss=None, elapsed=0.0, loader=loader),
        checkpoint=checkpoint,
        started_from=weights_digest(checkpoint),
        trained_before=trained_positions(there, state),
        trained_positions=_trained_positions(there, state, config),
    )


def _trained_positions(there: RunConfig, state: TrainState, config: RunConfig) -> int | None:
    """How many positions the other run has trained, if longer examples now need more of them."""
    trained, longest = trained_positions(there, state), config.data.max_seq_length
    if trained is None or trained >= longest:
        return None
    if there.model.max_position_embeddings >= longest:  # else see `note_of`
        print(f"note: the other run {positions_note(trained)}", file=sys.stderr)
    return trained


def _differences(config: RunConfig, there: RunConfig, *parts: str) -> str:
    """What differs besides dropout, which is not part of the weights."""
    now, then = (replace(one, model=with_dropout(one.model, 0.0)) for one in (config, there))
    return "; ".join(now.differences(then, *parts))
