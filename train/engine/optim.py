"""The optimizers of pretraining and fine-tuning."""

from collections.abc import Iterable

import torch
from torch import nn

from clozeline.train.config import PretrainConfig
from clozeline.train.engine.muon import MuonWithAdamW, is_hidden_matrix
from clozeline.train.engine.schedule import learning_rate_at, momentum_at


def build_optimizer(
    model: nn.Module, training: PretrainConfig, *, dtype: torch.dtype = torch.bfloat16
) -> torch.optim.Optimizer:
    """The optimizer of pretraining; `dtype` is that of Muon's products."""
    rate, decay = training.learning_rate, training.weight_decay
    betas = (training.beta1, training.beta2)
    if training.optimizer == "adamw":
        return adamw(model, learning_rate=rate, weight_decay=decay, betas=betas)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [p for name, p in named if is_hidden_matrix(name, p)]
    rest = [p for name, p in named if not is_hidden_matrix(name, p)]
    groups = [{"params": hidden, "lr": rate, "weight_decay": decay}]
    others = _adamw(rest, learning_rate=rate, weight_decay=decay, betas=betas)
    return MuonWithAdamW(groups, others, dtype=dtype)


def adamw(
    model: nn.Module, *, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov & Hutter 2019); no weight decay on vectors (norms and biases)."""
    trained = (p for p in model.parameters() if p.requires_grad)
    return _adamw(trained, learning_rate=learning_rate, weight_decay=weight_decay, betas=betas)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def follow_schedule(
    optimizer: torch.optim.Optimizer, training: PretrainConfig, step: int, elapsed: float
) -> None:
    """Set the learning rate, and Muon's momentum, of a step that begins after `elapsed` seconds."""
    set_learning_rate(optimizer, learning_rate_at(training, step, elapsed))
    for group in optimizer.param_groups:
        if "momentum" in group:
            group["momentum"] = momentum_at(training, step, elapsed)


def _adamw(
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
) -> torch.optim.AdamW:
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=1e-6, fused=True)
