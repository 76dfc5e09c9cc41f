"""Muon for the matrices of the layers (Jordan et al. 2024), AdamW for all other parameters.

Muon's update is an orthogonal matrix, scaled to the root mean square of AdamW's updates (Liu et al.
2025, "Muon is scalable", section 2.2), so both use the same learning rate and weight decay.
Embeddings and heads are matrices too, but their rows are tokens and classes: those stay with AdamW,
as do vectors. Packed queries, keys and values count as one matrix, and so do a gate and the
projection that it multiplies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

MOMENTUM = 0.95


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter of a pretraining model maps hidden states to hidden states."""
    return name.startswith("encoder.layers.") and parameter.ndim == 2


class MuonWithAdamW(torch.optim.Optimizer):
    """Both optimizers as one, with a single list of groups and a single table of moments."""

    def __init__(
        self,
        matrices: list[nn.Parameter],
        adamw: torch.optim.AdamW,
        *,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        muon = torch.optim.Muon(
            matrices,
            lr=learning_rate,
            weight_decay=weight_decay,
            momentum=MOMENTUM,
            adjust_lr_fn="match_rms_adamw",
        )
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._parts: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        for part in self._parts:
            part.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update of all parameters."""
        assert closure is None, "a closure would run twice"
        for part in self._parts:
            part.step()
