"""Where a life begins: at nothing, at a checkpoint of its own run, or at the weights of another."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.common.errors import InputError
from train.artifacts.checkpoint import (
    TrainState,
    check_checkpoint,
    list_checkpoints,
    set_aside,
    weights_digest,
)
from train.artifacts.run import SUMMARY, RunConfig, read_run
from train.config import PretrainConfig
from train.engine.schedule import is_over
from train.pretraining.initial_weights import check_initial


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where training stands before the first step of a life."""

    state: TrainState
    checkpoint: Path | None = None  # where the weights come from; None: from the seed
    init: Path | None = None  # or from this Hugging Face folder
    has_moments: bool = True  # that fit, in this checkpoint
    is_complete: bool = False  # there is nothing left to do
    started_from: str | None = None  # see RunConfig


def find_start(
    out: Path,
    config: RunConfig,
    *,
    shards: Path,
    resume: bool,
    overwrite: bool = False,
    start_from: Path | None = None,
    init: Path | None = None,
) -> Start:
    """Look at what is in `out`; its own checkpoints come before those of another run or folder.

    With `overwrite` it has none. `start_from` is a run, and `init` a Hugging Face folder, whose
    tokenizer `shards` must have.

    A damaged checkpoint is set aside, said so on standard error, and the one before it is taken:
    training repeats some steps and comes to the same. Raises InputError rather than spoil what is
    there.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give the run a folder of its own.")
    if start_from and start_from.resolve() == out.resolve():
        raise InputError(f"--start-from and --out are both {out}; give the new run a folder.")
    if not overwrite and (out / "run.json").exists():
        there = read_run(out)
        if found := _newest_whole(out):
            checkpoint, state = found
            _check_same(out, config, there, state)
            _check_asked_for(out, config, there, state, resume=resume)
            over = is_over(config.training, state.step, state.elapsed)
            return Start(
                state=state,
                checkpoint=checkpoint,
                is_complete=over and (out / SUMMARY).exists(),
                started_from=there.started_from,
            )
    if start_from:
        return _other_start(start_from, config)
    if init:
        digest = check_initial(init, config.model, shards)
        return Start(state=_fresh(config), init=init, started_from=digest)
    return Start(state=_fresh(config))


def _newest_whole(out: Path) -> tuple[Path, TrainState] | None:
    checkpoints = list_checkpoints(out)
    damages: list[InputError] = []
    for checkpoint in reversed(checkpoints):
        try:
            state = check_checkpoint(checkpoint)
        except InputError as error:
            damages.append(error)
            continue
        for damaged, damage in zip(reversed(checkpoints), damages, strict=False):
            aside = set_aside(damaged)
            print(
                f"warning: {damage} It is set aside as {aside.name}, and training goes on from "
                f"step {state.step}.",
                file=sys.stderr,
            )
        return checkpoint, state
    if damages:
        raise InputError(f"No checkpoint of {out} is whole. {damages[0]} --overwrite starts anew.")
    return None  # it was stopped before its first checkpoint: nothing is lost


def _check_same(out: Path, config: RunConfig, there: RunConfig, state: TrainState) -> None:
    """Raises InputError where going on would not be the same run."""
    there = replace(  # what the checkpoint says counts, not what stands beside it
        there, dataset_digest=state.dataset_digest, tokenizer_digest=state.tokenizer_digest
    )
    if fatal := config.differences(there, "model", "dataset_digest", "tokenizer_digest"):
        raise InputError(
            f"{out} holds a run of another model, data set or tokenizer ({'; '.join(fatal)}). "
            "Give another --out, or --overwrite."
        )
    if state.seed != config.training.seed:
        raise InputError(
            f"{out} reads the data in the order of seed {state.seed}, not of "
            f"{config.training.seed}; give that seed, or another --out."
        )
    _check_bins(out, config.training, there.training)
    if there.training.optimizer != config.training.optimizer:
        raise InputError(
            f"{out} has the moments of --optimizer {there.training.optimizer}; give that one, or "
            f"another --out with --start-from {out}."
        )


def _check_bins(out: Path, training: PretrainConfig, there: PretrainConfig) -> None:
    if not training.length_bins and not there.length_bins:
        return
    for name in ("length_bins", "batch_size"):
        ours, theirs = getattr(training, name), getattr(there, name)
        if ours != theirs:
            raise InputError(
                f"{out} reads the data in the order of {name} {theirs}, not of {ours}; give that "
                "one, or another --out. Without length bins any batch size goes on."
            )


def _check_asked_for(
    out: Path, config: RunConfig, there: RunConfig, state: TrainState, *, resume: bool
) -> None:
    training = config.training
    if training.budget is None and state.step > training.max_steps:
        raise InputError(
            f"{out} holds a run at step {state.step}, which is beyond --max-steps "
            f"{training.max_steps}; give at least {state.step}, or another --out."
        )
    changed = config.differences(there, "training")
    is_finished = is_over(there.training, state.step, state.elapsed)
    if resume or (is_finished and not changed):
        return
    raise InputError(
        f"{out} holds a run at step {state.step}"
        + (f" of another config ({'; '.join(changed)})" if changed else "")
        + ". Give --resume to go on, --overwrite to start anew, or another --out."
    )


def _other_start(other: Path, config: RunConfig) -> Start:
    """Weights and moments of another run; the data and the schedule from their beginning.

    Raises InputError where the model or the tokenizer is another one.
    """
    there = read_run(other)
    checkpoints = list_checkpoints(other)
    if not checkpoints:
        raise InputError(f"{other} has no checkpoint yet to start from; finish it first.")
    check_checkpoint(checkpoints[-1])
    if fatal := _without_dropout(config).differences(
        _without_dropout(there), "tokenizer_digest", "model"
    ):
        raise InputError(
            f"{other} has another model or tokenizer ({'; '.join(fatal)}), so its weights do not "
            "fit; give the --preset and shards of the tokenizer that it was trained with."
        )
    return Start(
        state=_fresh(config),
        checkpoint=checkpoints[-1],
        has_moments=there.training.optimizer == config.training.optimizer,
        started_from=weights_digest(checkpoints[-1]),
    )


def _without_dropout(config: RunConfig) -> RunConfig:
    """It is no part of the weights: a run may have another than the one it starts from."""
    model = replace(config.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return replace(config, model=model)


def _fresh(config: RunConfig) -> TrainState:
    return TrainState(
        step=0,
        next_position=0,
        dataset_digest=config.dataset_digest,
        tokenizer_digest=config.tokenizer_digest,
        seed=config.training.seed,
    )
