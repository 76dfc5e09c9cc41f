"""The processes of a run: a single one, or those that torchrun started."""

import gc
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Its functions bind the current default group as a default argument. If an optimizer's first step
# imported it, it would keep the group and its threads alive until the interpreter exits; gloo's
# thread, which needs the interpreter one last time, would then abort the process.
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import (
    ClozelineError,
    InputError,
    LostProcessError,
    one_line,
)
from clozeline.train.engine.attempt_store import attempt_store

Found = TypeVar("Found")

#: How long processes wait for each other: rank 0 may be reading a large checkpoint.
PATIENCE = timedelta(minutes=30)
#: How long they wait for the last one to start, at least: importing torch may take a while.
MEETING = timedelta(minutes=5)


@dataclass(frozen=True)
class World:
    """This process's rank, the number of processes, and this process's device."""

    rank: int
    size: int
    device: torch.device
    #: Where the processes met; None for one process, and a group that others created.
    store: Store | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, on each of them; `values` is changed in place."""
        return self.begin_sum(values)()

    def begin_sum(self, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        """`sum` in the background: what is returned waits for it, and returns the sum."""
        work = dist.all_reduce(values, async_op=True) if self.size > 1 else None

        def total() -> torch.Tensor:
            if work:
                work.wait()  # with NCCL the device's stream waits, not this thread
            return values

        return total

    def broadcast(self, values: torch.Tensor) -> None:
        """Let `values` be those of rank 0, in place."""
        if self.size > 1:
            dist.broadcast(values, src=0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is true in any process."""
        return self.min(int(not flag)) == 0

    def min(self, value: int) -> int:
        """The smallest of the processes' values."""
        if self.size == 1:
            return value
        values = torch.tensor(value, device=self.device)
        dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return int(values.item())

    def broadcast_from_main(self, find: Callable[[], Found]) -> Found:
        """What `find` returns on rank 0, on every process.

        Where it raises a ClozelineError, rank 0 raises it, and the others exit with its exit code.
        """
        if self.size == 1:
            return find()
        answer: list[Found | ClozelineError | None] = [None]
        if self.is_main:
            try:
                answer = [find()]
            except ClozelineError as error:
                answer = [error]
        dist.broadcast_object_list(answer, src=0, device=self.device)
        [value] = answer
        if isinstance(value, ClozelineError):
            if self.is_main:
                raise value
            sys.exit(value.exit_code)  # rank 0 prints the reason
        return value  # type: ignore[return-value]

    def tensors_from_main(
        self, find: Callable[[], dict[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """The tensors that `find` returns on rank 0, on every process and on the CPU.

        So only rank 0's machine needs the files that they are read from. Where `find` raises, this
        does what `broadcast_from_main` does.
        """
        if self.size == 1:
            return find()
        tensors: dict[str, torch.Tensor] = {}

        def shapes() -> list[tuple[str, torch.Size, torch.dtype]]:
            tensors.update(find())
            return [(name, value.shape, value.dtype) for name, value in tensors.items()]

        for name, shape, dtype in self.broadcast_from_main(shapes):
            value = tensors[name] if self.is_main else torch.empty(shape, dtype=dtype)
            sent = value.to(self.device).contiguous()  # NCCL sends what is on a GPU
            self.broadcast(sent)
            tensors[name] = value if self.is_main else sent.cpu()
        return tensors


@contextmanager
def join_world(*, patience: timedelta = PATIENCE) -> Iterator[World]:
    """The world that torchrun's environment variables describe.

    A process group that this creates is destroyed at the end of the block; its processes wait for
    each other for up to `patience`, and then fail (`lost_process.py`). With NCCL it is destroyed
    only after success, since that waits for all processes: after an error they may not come.
    Raises LostProcessError where they do not meet.
    """
    size = _number("WORLD_SIZE", "1")
    device = _device(_number("LOCAL_RANK", "0"))
    if size == 1:
        yield World(0, 1, device)
    elif dist.is_initialized():
        yield World(dist.get_rank(), size, device)
    else:
        world = _meet(device, patience)
        has_succeeded = False
        try:
            yield world
            has_succeeded = True
        finally:
            if has_succeeded or device.type == "cpu":
                dist.destroy_process_group()
            gc.collect()  # cycles of models hold the group, which must not live on (see the import)


def _number(variable: str, default: str) -> int:
    """An environment variable as a number. Raises InputError for any other value."""
    value = os.environ.get(variable, default)
    if not value.isdecimal():
        raise InputError(f"{variable} is {value!r} in the environment; torchrun sets a number.")
    return int(value)


def _meet(device: torch.device, patience: timedelta) -> World:
    """Create the process group of all processes."""
    is_cuda = device.type == "cuda"
    try:
        meeting = max(patience, MEETING)
        joined, rank, size = next(rendezvous("env://", timeout=meeting))
        store = attempt_store(joined, rank, size, patience=meeting)
        store.set_timeout(patience)
        store.set(f"host/{rank}", platform.node())
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=patience,
            device_id=device if is_cuda else None,  # NCCL then connects now, not in the first step
        )
    except ValueError as error:
        raise InputError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but another variable that torchrun sets is "
            f"missing or wrong ({one_line(error)}); start all processes with torchrun."
        ) from error
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise LostProcessError(
            f"the {os.environ['WORLD_SIZE']} processes did not meet at {place} "
            f"({one_line(error)}). See the output of the others, and whether the machines reach "
            "each other; then start all processes again."
        ) from error
    return World(rank, size, device, store)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; a copy to a GPU is begun, and the host does not wait for it."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_main_process() -> bool:
    """Whether this process is rank 0, also before `join_world`."""
    return _number("RANK", "0") == 0


def is_restart() -> bool:
    """Whether torchrun (`--max-restarts`) restarted this process after a failure."""
    return _number("TORCHELASTIC_RESTART_COUNT", "0") > 0


def parallelize(
    model: BertForPretraining, world: World, *, parallel: str, precision: str, compile: bool
) -> nn.Module:
    """The model on its device, replicated (`ddp`) or sharded (`fsdp`) over the processes.

    `ddp` returns a wrapper around the model, `fsdp` the model itself with DTensor parameters, so
    build the optimizer afterwards. Both average gradients over the processes. A sharded model
    computes in `precision` by itself; autocast would convert its weights once more.
    """
    if is_sharded(world, parallel):
        return _shard(model, world, precision=precision, compile=compile)
    model.to(world.device)
    if compile:
        model.compile()
    if world.size == 1:
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def is_sharded(world: World, parallel: str) -> bool:
    """Whether `parallelize` shards the model; one process has nothing to share."""
    return world.size > 1 and parallel == "fsdp"


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, gathered if it is sharded; a collective call, on every process."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A process's shard of a tensor that every process has, sharded like the parameter."""
    tensor = tensor.to(parameter.device)
    if not hasattr(parameter, "full_tensor") or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # No source rank: each process takes its own shard, and nothing is sent.
    return distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def share_out(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function` of x [K, ...], which acts on each of the K alone; each process computes some.

    The results are then gathered. Where x is sharded (FSDP2), a process first receives its share of
    the K whole, and keeps its shard of each result. A collective call, on every process.
    """
    size = dist.get_world_size() if dist.is_initialized() else 1
    if hasattr(x, "full_tensor"):
        from torch.distributed.tensor import DTensor, Shard

        assert isinstance(x, DTensor)
        dealt = x.redistribute(placements=[Shard(0)] * x.device_mesh.ndim)
        how: dict[str, Any] = {"run_check": False, "shape": x.shape, "stride": x.stride()}
        mine = function(dealt.to_local()).contiguous()
        computed = DTensor.from_local(mine, x.device_mesh, dealt.placements, **how)
        return computed.redistribute(placements=x.placements)
    if size == 1:
        return function(x)
    share = -(-len(x) // size)
    padding = x.new_zeros(share * size - len(x), *x.shape[1:])
    mine = function(torch.cat([x, padding]).split(share)[dist.get_rank()]).contiguous()
    gathered = mine.new_empty(share * size, *mine.shape[1:])
    dist.all_gather(list(gathered.split(share)), mine)
    return gathered[: len(x)]


def _shard(model: BertForPretraining, world: World, *, precision: str, compile: bool) -> nn.Module:
    """FSDP2: weights are gathered, used and freed layer by layer.

    On several machines each holds the whole model (HSDP): weights are gathered inside a machine,
    and only the gradients of shards cross the network. Each process keeps its shards in float32.
    With bf16, weights are rounded before they are gathered, which halves what is sent; gradients
    are added up in float32. The embeddings belong to the root, as a tied decoder needs them from
    the first to the last product; an untied decoder, used once, is a unit of its own.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes a second to import

    of_machine = _number("LOCAL_WORLD_SIZE", "1")
    is_uneven = world.any(of_machine != world.min(of_machine))
    shape = {"processes": world.size}
    if 1 < of_machine < world.size and not is_uneven:
        shape = {"machines": world.size // of_machine, "processes": of_machine}
    mesh = init_device_mesh(world.device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    if world.device.type == "cpu" and not compile:
        # DTensor's caches keep the mesh, and it the group; only the compiler asks the mesh for it.
        getattr(mesh, "_pg_registry", {}).clear()
    policy = MixedPrecisionPolicy()
    if precision == "bf16":  # the only float inputs are rotations, whose angles need float32
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    # This warns about the logits, which are never changed in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for layer in model.encoder.layers:
        if compile:  # inside FSDP's hooks, which cannot be compiled
            layer.forward = torch.compile(layer.forward)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if model.mlm_head.decoder is not None:  # its weights are the first that the backward pass uses
        fully_shard(model.mlm_head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _device(local_rank: int) -> torch.device:
    """Raises InputError where there are more processes than GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= (devices := torch.cuda.device_count()):
        raise InputError(
            f"process {local_rank} of this machine has no GPU of its own: there are {devices}; "
            f"give torchrun --nproc-per-node {devices}."
        )
    torch.cuda.set_device(local_rank)
    torch.set_float32_matmul_precision("high")  # TF32, where float32 is asked for
    # Its gradients can be NaN with a mask where the length modulo 128 is 64 (pytorch #196678).
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", local_rank)
