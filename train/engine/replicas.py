"""A model that several processes train together, each with its own copy.

    rows of a step, split   ->  gradients of each process  ->  their sum, the same for all

A process that has no row of a step takes part, too, with gradients of 0; DistributedDataParallel,
which pretraining uses, waits for a backward pass of each process.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from clozeline.train.engine.distributed import World


def sum_gradients(model: nn.Module, world: World) -> None:
    """Let each gradient be its sum over the processes; one that has none counts as 0."""
    if world.size == 1:
        return
    parameters = list(model.parameters())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    summed = world.sum(parameters_to_vector(gradients))
    for parameter, part in _parts(summed, parameters):
        parameter.grad = part


def same_weights(model: nn.Module, world: World) -> None:
    """Copy rank 0's parameters to all processes, whose processors may round differently."""
    if world.size == 1:
        return
    parameters = list(model.parameters())
    with torch.no_grad():
        sent = parameters_to_vector(parameters)
        world.broadcast(sent)
        for parameter, part in _parts(sent, parameters):
            parameter.copy_(part)


def _parts(
    whole: torch.Tensor, parameters: list[nn.Parameter]
) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Each parameter with its part of a vector of all of them."""
    parts = whole.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        yield parameter, part.view_as(parameter)
