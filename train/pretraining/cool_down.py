"""`--cool-down-from RUN@STEP`: a finished model from a checkpoint in the middle of a run.

    RUN    step 1 ... 8000 ... 10000    learning rate 1e-3, 1e-3, ...
    OUT        8001 ... 10000           learning rate 1e-3 -> 0, in a line

The new run continues from the weights, the moments and the position in the data of the checkpoint:
it is the decay of a `wsd` schedule (Hu et al. 2024, MiniCPM, section 4), which may begin at any
step. After a constant learning rate, the model is bit for bit the one that `--schedule wsd` makes.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import checkpoint_of, read_state
from clozeline.train.artifacts.run import read_run
from clozeline.train.config import RECIPE_FIELDS
from clozeline.train.engine.schedule import batch_size_at, learning_rate_at
from clozeline.train.pretraining.recipes import WSD_DECAY, Setting, Value


class CoolDown(NamedTuple):
    """Where the learning rate begins to fall."""

    run: Path
    step: int

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"


def parse_cool_down(text: str) -> tuple[str, int]:
    """A run and a step, such as "work/run@8000". Raises InputError for anything else."""
    run, _, step = text.rpartition("@")
    if not run or not re.fullmatch("[1-9][0-9]{0,14}", step):
        raise InputError(
            f"--cool-down-from {text!r} is not RUN@STEP; give a run and the step of one of its "
            "checkpoints, such as work/run@8000."
        )
    return run, int(step)


def settings_of(start: CoolDown) -> dict[str, Setting]:
    """The run's settings at that step, with `max_steps` such that the decay is the last fifth.

    Raises InputError where the run or the checkpoint does not exist.
    """
    training = read_run(start.run).training
    elapsed = read_state(checkpoint_of(start.run, start.step)).elapsed
    values: dict[str, Value] = {name: getattr(training, name) for name in RECIPE_FIELDS}
    values["learning_rate"] = learning_rate_at(training, start.step, elapsed)
    values["batch_size"] = batch_size_at(training, start.step, elapsed)
    settings = {name: Setting(value, str(start)) for name, value in values.items()}
    fifth = Setting(math.ceil(start.step / (1 - float(WSD_DECAY.value))), WSD_DECAY.source)
    return settings | {"max_steps": fifth}


def with_decay(
    settings: Mapping[str, Setting], given: Mapping[str, Value], start: CoolDown
) -> dict[str, Setting]:
    """The settings with a decay from the step after `start` to the last one.

    Raises InputError if there are no such steps, or if a `given` option contradicts the decay.
    """
    last = int(settings["max_steps"].value)
    if last <= start.step:
        raise InputError(
            f"--max-steps {last} is not after step {start.step} of {start.run}; give the step at "
            "which the model is finished."
        )
    decay: dict[str, Value] = {
        "schedule": "wsd",
        "warmup": 0.0,
        "cool_down": (last - start.step) / last,
    }
    for name, value in decay.items():
        if given.get(name, value) != value:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"{option} {given[name]} does not go with --cool-down-from; leave it out."
            )
    return {**settings, **{name: Setting(value, str(start)) for name, value in decay.items()}}
