"""`clozeline average`: the mean of the last checkpoints of a run, as a run of its own.

    RUN/checkpoints/step-00000800, step-00000900, step-00001000   --last 3
    ->  OUT/checkpoints/step-00001000, OUT/run.json, OUT/tokenizer/, OUT/summary.json

Weights that are averaged along the way are often better than the last ones, as if the learning rate
had been lowered (Izmailov et al. 2018). Each mean is taken in float64 and rounded once. An average
has no optimizer state: a run may start from it, but cannot continue it.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from clozeline.pipeline.common.config_checks import check_at_least
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.folder_owner import check_replaceable
from clozeline.pipeline.common.paths import GivenPath
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.checkpoint import (
    TrainState,
    list_checkpoints,
    load_weights,
    read_state,
    save_checkpoint,
    step_of,
    weights_digest,
)
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder
from clozeline.train.artifacts.run import (
    RUN,
    RunConfig,
    check_fits,
    check_run_folder,
    load_run,
    read_run,
    write_run,
    write_summary,
)
from clozeline.train.artifacts.snapshot import Snapshot
from clozeline.train.evaluation.evaluate import Evaluation, evaluate
from clozeline.train.monitoring.metrics import METRICS
from clozeline.train.store.local_folder import local_folder


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """Result of `average`."""

    steps: list[int]
    is_new: bool  # False: the same average was already there
    heldout: Evaluation | None


def average(
    run: GivenPath, *, out: GivenPath, last: int = 5, shards: GivenPath | None = None
) -> Averaged:
    """Write the mean of the newest `last` checkpoints of a run; measure it on `shards`, if given.

        >>> average("work/run", out="work/average", last=2).steps
        [2, 4]

    The folder is a run for all other functions, but has no optimizer state. Raises InputError if
    there are fewer checkpoints, if one in between is missing, if their weights differ in shape, or
    if `out` holds anything but the same average.
    """
    check_at_least("last", last, 2)
    with local_folder(run) as run, local_folder(out, writes=True) as out:
        return _average(run, out.resolve(), last, shards)


def _average(run: Path, out: Path, last: int, shards: GivenPath | None) -> Averaged:
    config, tokenizer, _ = load_run(run)  # checks that they belong together
    folders = _newest(run, config, last=last)
    state = replace(read_state(folders[-1]), heldout_loss=None)
    steps = [step_of(folder) for folder in folders]
    config = replace(config, averaged={folder.name: weights_digest(folder) for folder in folders})
    check_run_folder(out)
    if shards:
        check_fits(shards, read_manifest(shards), run, config)
    if (out / RUN).exists():
        if read_run(out) != config:
            raise InputError(f"{out} holds another run; choose another --out.")
        with locked_folder(out):
            heldout = _write_results(out, state, shards) if shards else None
        return Averaged(steps=steps, is_new=False, heldout=heldout)
    check_replaceable(out, "an average", own=())
    with locked_folder(out), partial_folder(out) as partial:
        write_run(partial, config, tokenizer)
        save_checkpoint(partial, Snapshot(mean_of(folders), {}), state)
        heldout = _write_results(partial, state, shards)
        replace_folder(partial, out)
    return Averaged(steps=steps, is_new=True, heldout=heldout)


def mean_of(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of each weight, in its own dtype.

    Raises InputError where names or shapes differ, and for a checkpoint that is damaged or gone.
    """
    first = load_weights(checkpoints[0])
    sums = {name: weight.double() for name, weight in first.items()}
    for folder in checkpoints[1:]:
        weights = load_weights(folder)
        if _shapes(weights) != _shapes(first):
            raise InputError(
                f"{folder} and {checkpoints[0]} have weights of other names or shapes; only "
                "checkpoints of one model can be averaged."
            )
        for name, weight in weights.items():
            sums[name] += weight.double()
    return {name: (sums[name] / len(checkpoints)).to(first[name].dtype) for name in first}


def _newest(run: Path, config: RunConfig, *, last: int) -> list[Path]:
    """The newest `last` checkpoints, oldest first.

    Raises InputError if there are fewer, or others were removed between them.
    """
    kept = list_checkpoints(run)
    steps = [step_of(folder) for folder in kept]
    if len(kept) < last:
        listed = ", ".join(map(str, steps))
        fix = f"give --last {len(kept)} at most, or " if len(kept) > 1 else ""
        raise InputError(
            f"{run} has {len(kept)} checkpoint{'s' * (len(kept) != 1)} (step {listed}), not "
            f"{last}; {fix}train with --keep {last} and a smaller --save-every."
        )
    every, keep = config.training.save_every, config.training.keep
    for before, after in pairwise(steps[-last:]):
        if not 0 < every < after - before:
            continue
        gap = (
            f"{run} has no checkpoint between steps {before} and {after}, though one is saved "
            f"every {every} steps"
        )
        newer = sum(step >= after for step in steps)
        if newer >= keep:  # before these, only the best one was kept
            raise InputError(f"{gap}; give --last {newer} at most, or train with --keep {last}.")
        # Perhaps --save-every was larger, or --keep smaller, before the run was resumed.
        print(f"note: {gap}.", file=sys.stderr)
    return kept[-last:]


def _write_results(run: Path, state: TrainState, shards: GivenPath | None) -> Evaluation | None:
    """Write the held-out result, measured on the shards if there are any."""
    heldout, values = None, dict[str, float]()
    if shards:
        heldout = evaluate(run, shards)
        values = heldout.to_dict()
    line = {"step": state.step} | {f"heldout/{name}": x for name, x in values.items()}
    (run / METRICS).write_text(json.dumps(line) + "\n", "utf-8")
    write_summary(run, state.step, values or None)
    return heldout


def _shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}
