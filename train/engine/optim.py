"""The optimizers of pretraining: AdamW and Muon.

Muon for the matrices of the layers (Jordan et al. 2024), AdamW for all other parameters.

Muon's update is an orthogonal matrix, scaled to the root mean square of AdamW's updates (Liu et al.
2025, "Muon is scalable", section 2.2), so both use the same learning rate and weight decay.
Embeddings and heads are matrices too, but their rows are tokens and classes: those stay with AdamW,
as do vectors. Packed queries, keys and values count as one matrix, and so do a gate and the
projection that it multiplies. Processes share the matrices of a shape: each computes the updates of
some of them (`share_out`).

    K matrices of one shape    M rows, N columns
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from clozeline.train.config import Optimizer, PretrainConfig
from clozeline.train.engine.distributed import share_out
from clozeline.train.engine.schedule import learning_rate_at

MOMENTUM = 0.95
#: Coefficients of the polynomial that brings all singular values near 1 (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter of a pretraining model maps hidden states to hidden states."""
    return name.startswith("encoder.layers.") and parameter.ndim == 2


class MuonWithAdamW(torch.optim.Optimizer):
    """Both optimizers as one, with a single list of groups and a single table of moments."""

    def __init__(
        self, groups: list[dict[str, Any]], adamw: torch.optim.AdamW, *, dtype: torch.dtype
    ) -> None:
        """`groups` of matrices for Muon, each with `lr` and `weight_decay`; then AdamW's groups.

        Updates of matrices are computed in `dtype`, which has to be that of all processes.
        """
        super().__init__([*groups, *adamw.param_groups], {})
        self._matrix_groups = self.param_groups[: len(groups)]
        self._adamw, self._dtype = adamw, dtype
        self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update of all parameters."""
        assert closure is None, "a closure would run twice"
        for group in self._matrix_groups:
            for matrices in _of_one_shape(group["params"]):
                self._update(matrices, group["lr"], group["weight_decay"])
        self._adamw.step()

    def _update(self, matrices: list[nn.Parameter], rate: float, decay: float) -> None:
        """Update matrices of one shape in few kernels; overwrites their gradients."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]  # all have one
        for matrix in matrices:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        torch._foreach_lerp_(gradients, momenta, MOMENTUM)  # Nesterov's; in place, as DTensors need
        stacked = torch.stack([x.to(self._dtype) for x in gradients])  # [K, M, N]
        updates = share_out(orthogonalized, stacked).to(matrices[0].dtype)
        weights: list[Tensor] = list(matrices)
        size = 0.2 * max(matrices[0].shape) ** 0.5  # of AdamW's update, root mean square
        torch._foreach_mul_(weights, 1 - rate * decay)
        torch._foreach_add_(weights, list(updates.unbind()), alpha=-rate * size)


def orthogonalized(matrices: Tensor) -> Tensor:
    """The nearly orthogonal matrices with the same singular vectors, [K, M, N], same dtype.

    Five Newton-Schulz iterations, for which bfloat16 is exact enough; singular values end between
    about 0.7 and 1.2.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def muon_flops(shape: torch.Size) -> float:
    """Operations of `orthogonalized` for one matrix of this shape."""
    short, long = sorted(shape)
    return ITERATIONS * 2 * short**2 * (2 * long + short)


def _of_one_shape(matrices: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[torch.Size, list[nn.Parameter]] = {}
    for matrix in matrices:
        if matrix.grad is not None:
            groups.setdefault(matrix.shape, []).append(matrix)
    return list(groups.values())


def build_optimizer(
    model: nn.Module, training: PretrainConfig, *, dtype: torch.dtype = torch.bfloat16
) -> torch.optim.Optimizer:
    """The optimizer of a pretraining, see `new_optimizer`."""
    betas, decay = (training.beta1, training.beta2), training.weight_decay
    optimizer = new_optimizer(model, training.optimizer, decay=decay, betas=betas, dtype=dtype)
    for group in optimizer.param_groups:
        group["lr"] = training.learning_rate
    return optimizer


def new_optimizer(
    model: nn.Module,
    kind: Optimizer,
    *,
    decay: float,
    betas: tuple[float, float],
    dtype: torch.dtype,
) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov & Hutter 2019), or Muon for the layers' matrices and AdamW elsewhere.

    Its rate is 0 until one is set. Vectors (norms and biases) have no weight decay. `dtype` is that
    of Muon's products.
    """
    hidden: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if kind == "muon" and is_hidden_matrix(name, parameter):
            hidden.append(parameter)
        else:
            (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    adamw = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=0.0,
        betas=betas,
        eps=1e-6,
        fused=True,
    )
    if not hidden:
        return adamw
    muon = {"params": hidden, "lr": 0.0, "weight_decay": decay}
    return MuonWithAdamW([muon], adamw, dtype=dtype)


def follow_schedule(
    optimizer: torch.optim.Optimizer, training: PretrainConfig, step: int, elapsed: float
) -> None:
    """Set the learning rate of a step that begins after `elapsed` seconds."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(training, step, elapsed)
