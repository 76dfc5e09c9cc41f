"""AdamW and the learning rate over time."""

import math

import torch
from torch import nn

from train.config import PretrainConfig

# The share of a `wsd` run in which the learning rate falls, its warm-up not counted
# (Hu et al. 2024, MiniCPM, section 4).
WSD_DECAY = 0.2


def build_optimizer(model: nn.Module, training: PretrainConfig) -> torch.optim.AdamW:
    """The optimizer of pretraining."""
    return adamw(
        model,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        betas=(training.beta1, training.beta2),
    )


def adamw(
    model: nn.Module, *, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov & Hutter 2019); vectors, that is norms and biases, do not decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=1e-6, fused=True)


def learning_rate_at(step: int, config: PretrainConfig) -> float:
    """Of the update that ends step `step` (from 1): a linear rise, then the schedule, to 0."""
    return config.learning_rate * schedule_factor(
        step / config.max_steps, warmup=config.warmup, schedule=config.schedule
    )


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


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """For all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
