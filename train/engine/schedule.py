"""What depends on how much of the run is over: the learning rate, and the size of the batch.

The run is so many steps, or with `--for` so many seconds:

    share over    0 ... batch_ramp ...                1
    batch size    1/8, 1/4, 1/2, then the whole
    rate          rises for `warmup`, then as `schedule` says

A step reads the next positions of the endless sequence, as many as its batch has examples: what is
read, and in which order, is the same under any ramp.
"""

import math

from train.config import RAMP, PretrainConfig

# The share of a `wsd` run in which the learning rate falls, its warm-up not counted
# (Hu et al. 2024, MiniCPM, section 4).
WSD_DECAY = 0.2


def is_over(config: PretrainConfig, steps: int, elapsed: float) -> bool:
    """Whether a run is complete that has made so many steps in so many seconds."""
    if config.budget is None:
        return steps >= config.max_steps
    return elapsed >= config.budget


def share_over(config: PretrainConfig, step: int, elapsed: float) -> float:
    """The share of the run that is over in the middle of a step (the first is 1), in [0, 1].

    In the middle, so that neither the first nor the last step has a learning rate of 0.
    """
    if config.budget is None:
        return min((step - 0.5) / config.max_steps, 1.0)
    return min(elapsed / config.budget, 1.0)


def learning_rate_at(config: PretrainConfig, step: int, elapsed: float = 0.0) -> float:
    """The learning rate of a step that begins after so many seconds."""
    return config.learning_rate * schedule_factor(
        share_over(config, step, elapsed), warmup=config.warmup, schedule=config.schedule
    )


def batch_size_at(config: PretrainConfig, step: int, elapsed: float = 0.0) -> int:
    """Examples of the global batch of a step that begins after so many seconds."""
    over = share_over(config, step, elapsed)
    if over >= config.batch_ramp:
        return config.batch_size
    return config.batch_size // RAMP[int(len(RAMP) * over / config.batch_ramp)]


def schedule_factor(done: float, *, warmup: float, schedule: str) -> float:
    """The learning rate's share of its highest value when `done` of the run is over, in [0, 1]."""
    if done <= warmup and warmup > 0:
        return done / warmup
    rest = min((done - warmup) / (1 - warmup), 1.0)
    match schedule:
        case "linear":
            return 1 - rest
        case "cosine":
            return (1 + math.cos(math.pi * rest)) / 2
        case "wsd":
            return min(1.0, (1 - rest) / WSD_DECAY)
        case _:
            return 1.0
