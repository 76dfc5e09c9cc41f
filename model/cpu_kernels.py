"""Dropout that draws four numbers at a time on CPU.

torch draws them one by one there, which takes an eighth of the step of a small model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """`nn.Dropout`, with `dropout` below."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero with probability p, in [0, 1), what is left divided by 1 - p; shape and type of `x`.

    On CPU p is rounded to a multiple of 2**-16, and 16 bits decide on each number: a quarter of
    the draws of torch's default generator.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)  # one kernel does it all there
    limit = round(p * 2**16)
    if limit == 0:
        return x
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    words = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = (words >= limit - 2**15).to(x.dtype)
    return x * kept.mul_(2**16 / (2**16 - limit))
