"""The processes of a run: one alone, or those that torchrun started."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from model.heads import BertForPretraining
from pipeline.common.errors import InputError

Found = TypeVar("Found")


@dataclass(frozen=True)
class World:
    """Who this process is among all of them."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Rank 0 writes files and talks."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in each of them; the tensor is changed in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)).item())

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def broadcast_from_main(self, find: Callable[[], Found]) -> Found:
        """What rank 0 finds, in every process. Where it raises InputError, all end with it."""
        if self.size == 1:
            return find()
        answer: list[Found | InputError | None] = [None]
        if self.is_main:
            try:
                answer = [find()]
            except InputError as error:
                answer = [error]
        dist.broadcast_object_list(answer, device=self.device)
        [found] = answer
        if isinstance(found, InputError):
            if self.is_main:
                raise found
            sys.exit(2)  # rank 0 says why
        return found  # type: ignore[return-value]


@contextmanager
def join_world() -> Iterator[World]:
    """The world that torchrun's environment describes.

    The group of processes ends with the block, unless it was there before.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = _device(int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, device)
        return
    is_ours = not dist.is_initialized()
    if is_ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, device)
    finally:
        if is_ours:
            dist.destroy_process_group()


def is_main_process() -> bool:
    """Whether this process is rank 0, in or out of a world: the one that talks."""
    return int(os.environ.get("RANK", "0")) == 0


def is_restart() -> bool:
    """Whether torchrun starts this process again (`--max-restarts`), after one of them failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def parallelize(
    model: BertForPretraining, world: World, *, parallel: str, compile: bool
) -> nn.Module:
    """The model as it is trained: on its device, and shared out among the processes.

    `ddp` gives a wrapper around the model, `fsdp` the model itself, its parameters now DTensors:
    make the optimizer afterwards. Both average gradients over the processes.
    """
    if world.size > 1 and parallel == "fsdp":
        return _shard(model, compile=compile)
    model.to(world.device)
    if compile:
        model.compile()
    if world.size == 1:
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, where each process may have a part; then all have to ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What a process keeps of a tensor that all of them have, beside its part of a parameter."""
    tensor = tensor.to(parameter.device)
    if not hasattr(parameter, "full_tensor") or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # No source rank: each cuts its own part, and nothing is sent.
    return distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def _shard(model: BertForPretraining, *, compile: bool) -> nn.Module:
    """FSDP2: layer by layer the weights are fetched, used and let go of.

    Weights stay float32 and autocast rounds them where they are used, as it does under DDP.
    """
    from torch.distributed.fsdp import fully_shard  # takes a second to import

    # Said of the logits, which nobody changes in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for layer in model.encoder.layers:
        if compile:  # inside the hooks, which are not for the compiler
            layer.forward = torch.compile(layer.forward)
        fully_shard(layer)
    fully_shard(model)
    return model


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
