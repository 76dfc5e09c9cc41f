"""The optimizer of pretraining."""

import torch
from torch import nn

from clozeline.train.config import PretrainConfig
from clozeline.train.engine.muon import MuonWithAdamW, is_hidden_matrix
from clozeline.train.engine.schedule import learning_rate_at


def build_optimizer(
    model: nn.Module, training: PretrainConfig, *, dtype: torch.dtype = torch.bfloat16
) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov & Hutter 2019), or Muon for the layers' matrices and AdamW elsewhere.

    Vectors (norms and biases) have no weight decay. `dtype` is that of Muon's products.
    """
    rate, decay = training.learning_rate, training.weight_decay
    hidden: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if training.optimizer == "muon" and is_hidden_matrix(name, parameter):
            hidden.append(parameter)
        else:
            (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    adamw = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=rate,
        betas=(training.beta1, training.beta2),
        eps=1e-6,
        fused=True,
    )
    if not hidden:
        return adamw
    muon = {"params": hidden, "lr": rate, "weight_decay": decay}
    return MuonWithAdamW([muon], adamw, dtype=dtype)


def follow_schedule(
    optimizer: torch.optim.Optimizer, training: PretrainConfig, step: int, elapsed: float
) -> None:
    """Set the learning rate of a step that begins after `elapsed` seconds."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(training, step, elapsed)
