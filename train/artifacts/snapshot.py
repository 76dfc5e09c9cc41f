"""Weights and moments by parameter name, on the CPU: the same from DDP, FSDP2 and one process.

weights   "encoder.layers.0.attention.qkv.weight"            float32 [3H, H]
moments   "encoder.layers.0.attention.qkv.weight/exp_avg"    float32 [3H, H]
          "encoder.layers.0.attention.qkv.weight/step"       float32 []
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clozeline.train.engine.distributed import full_tensor, shard_like


@dataclass(frozen=True)
class Snapshot:
    """A copy that further training does not change."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


@torch.no_grad()
def take_snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, is_kept: bool = True
) -> Snapshot:
    """Copy weights and moments; all processes call this, since each may have only a shard.

    The snapshot is empty in a process that does not keep it.
    """
    weights: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}
    # First: after an evaluation FSDP2 has gathered the weights, and this shards them again.
    for name, value in model.state_dict().items():
        _keep(weights, name, value, is_kept)
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            _keep(moments, f"{name}/{moment}", value, is_kept)
    if is_kept and torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()  # the copies are complete
    return Snapshot(weights, moments)


def restore_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]
) -> None:
    """Give the optimizer the moments of a snapshot, by parameter name."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in moments.items():
        name, _, moment = key.rpartition("/")
        by_name.setdefault(name, {})[moment] = value
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            moment: shard_like(parameter, value) for moment, value in by_name.get(name, {}).items()
        }


def _keep(tensors: dict[str, Tensor], name: str, value: Tensor, is_kept: bool) -> None:
    value = full_tensor(value)
    if not is_kept:
        return
    # Into pinned memory, which torch keeps for the next snapshot, a GPU copies several times as
    # fast, and need not finish one tensor before the next one.
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
    tensors[name] = copy.copy_(value.detach(), non_blocking=value.is_cuda)
