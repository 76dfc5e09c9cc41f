"""How long each process of several computes by itself, without its waits for the others.

    rank    0      1      2      3
    own     0.20   0.21   0.33   0.20   seconds a step: waiting for data, forward, backward
    ->      slowest_rank 2, straggler_seconds 0.125: the others (median) wait so long for it

In every step the processes wait for each other, first when the number of masked words is added up
(before the forward pass), then when gradients are (after the last one is computed). What is between
is a process's own time. A sharded model (FSDP2) waits inside its layers as well; of its processes,
only their waits for data differ.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import nn


class LocalTime:
    """Measures the own time of the passes of a model that `parallelize` returned.

    On CUDA, events are recorded in every pass, and read when the seconds are asked for.
    """

    def __init__(self, model: nn.Module, last_gradient: torch.Tensor, device: torch.device) -> None:
        """`last_gradient` is the parameter whose gradient a backward pass computes last."""
        self._is_cuda = device.type == "cuda"
        self._begin: Any = None
        self._passes: list[tuple[Any, Any]] = []
        model.register_forward_pre_hook(self._begins)
        last_gradient.register_post_accumulate_grad_hook(self._ends)

    def lap(self) -> float:
        """Seconds since the last lap; starts anew."""
        passes, self._passes = self._passes, []
        if not self._is_cuda:
            return float(sum(end - begin for begin, end in passes))
        torch.cuda.synchronize()
        return float(sum(begin.elapsed_time(end) for begin, end in passes)) / 1000

    def _begins(self, model: nn.Module, _: Any) -> None:
        self._begin = self._now() if model.training else None

    def _ends(self, _: torch.Tensor) -> None:
        if self._begin is not None:
            self._passes.append((self._begin, self._now()))

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def straggler(own: Sequence[float], *, steps: int, seconds: float) -> dict[str, float]:
    """Metrics from the own time of each rank in so many steps that took `seconds`; {} for one."""
    if len(own) < 2:
        return {}
    slowest = max(range(len(own)), key=own.__getitem__)
    lost = own[slowest] - median([*own[:slowest], *own[slowest + 1 :]])
    return {
        "slowest_rank": slowest,
        "straggler_seconds": round(lost / max(steps, 1), 6),
        "straggler_wait": round(lost / seconds, 4),
    }
