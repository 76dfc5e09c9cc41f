"""Learning rate and phase as functions of progress, the fraction of a run that is done.

Progress counts steps, or seconds with `--for`:

    learning rate    rises during `warmup`, then follows `schedule`
    phase            the last one whose `start` is not after it
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from clozeline.train.config import PretrainConfig
from clozeline.train.data.phases import DataPhase


def is_over(config: PretrainConfig, steps: int, elapsed: float) -> bool:
    """Whether a run is complete after this many steps and `elapsed` seconds."""
    if config.budget is None:
        return steps >= config.max_steps
    return elapsed >= config.budget


def progress(config: PretrainConfig, step: int, elapsed: float) -> float:
    """The fraction of the run that is done in the middle of a step (the first is 1), in [0, 1].

    In the middle, so that neither the first nor the last step has a learning rate of 0.
    """
    if config.budget is None:
        return min((step - 0.5) / config.max_steps, 1.0)
    return min(elapsed / config.budget, 1.0)


def first_step_from(config: PretrainConfig, start: float) -> int:
    """The first step of a run without a time budget whose progress is `start` or more."""
    steps = range(1, config.max_steps + 1)
    return 1 + bisect_left(steps, start, key=lambda step: progress(config, step, 0.0))


def learning_rate_at(config: PretrainConfig, step: int, elapsed: float = 0.0) -> float:
    """The learning rate of a step that begins after `elapsed` seconds."""
    return config.learning_rate * schedule_factor(
        progress(config, step, elapsed),
        warmup=config.warmup,
        schedule=config.schedule,
        cool_down=config.cool_down,
    )


def phase_at(
    phases: Sequence[DataPhase], config: PretrainConfig, step: int, elapsed: float = 0.0
) -> DataPhase:
    """The phase of a step that begins after `elapsed` seconds."""
    done = progress(config, step, elapsed)
    return phases[bisect_right([phase.start for phase in phases], done) - 1]


def schedule_factor(done: float, *, warmup: float, schedule: str, cool_down: float = 1.0) -> float:
    """The learning rate relative to its peak at progress `done`; both in [0, 1].

    `cool_down`: the last fraction after the warm-up in which `wsd` decays in a line (Hu et al.
    2024), and `wsd-sqrt` as 1 - sqrt(x) (Hägele et al. 2024, section 3).
    """
    if done <= warmup and warmup > 0:
        return done / warmup
    rest = min((done - warmup) / (1 - warmup), 1.0)
    match schedule:
        case "linear":
            return 1 - rest
        case "cosine":
            return (1 + math.cos(math.pi * rest)) / 2
        case "wsd":
            return min(1.0, (1 - rest) / cool_down)
        case "wsd-sqrt":
            return 1 - math.sqrt(max(0.0, 1 - (1 - rest) / cool_down))
        case _:
            return 1.0
