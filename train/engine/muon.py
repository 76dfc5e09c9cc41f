"""Muon for the matrices of the layers (Jordan et al. 2024), AdamW for all the rest.

Muon's step is an orthogonal matrix. It is scaled to the root mean square of AdamW's steps (Liu et
al. 2025, "Muon is scalable", section 2.2), so both go by one learning rate and one weight decay.
Embeddings and heads are matrices too, but their rows are words and classes: those stay with AdamW,
as do vectors. Packed queries, keys and values count as one matrix, and so do a gate and what it
is on.
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
    """Both as one: groups and moments of either stand in one list and one table."""

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
        self._parts = (muon, adamw)
        for part in self._parts:
            part.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update of all parameters."""
        assert closure is None, "a closure would be called twice"
        for part in self._parts:
            part.step()
