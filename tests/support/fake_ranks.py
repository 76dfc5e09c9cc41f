"""A job of 2, 8 or 64 ranks in this one process, rank after rank: what each keeps and sends.

torch's process group "fake" sends nothing and says that it did. With FSDP2 the tensors are fake,
too: shapes without memory. DDP's reducer copies gradients into memory of its own, so its tensors
are real and small; and since its own sum asks the process group for a result, which the fake one
lacks, a hook asks for the sum.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clozeline.model.bert import Layer
from clozeline.model.config import preset
from clozeline.model.positions import Rotation
from clozeline.train.engine.distributed import World, parallelize
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.pretraining.step import train_step
from tests.support.step_forms import FORMS, StepForm
from tests.support.training_configs import training_config

CPU = torch.device("cpu")
#: DDP finds the order of its buckets in the first step, and tells the ranks in the second.
STEPS = {"ddp": 3, "fsdp": 2}
FORMS_AND_PRESETS = {**FORMS, "bert-base": StepForm(preset("bert-base", vocab_size=30_522))}


class NoValues(TorchFunctionMode):
    """A fake tensor is not true: no gradient is clipped, no weight drawn a second time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return False if func is Tensor.__bool__ else func(*args, **(kwargs or {}))


class Collectives(TorchDispatchMode):
    """Notes what is asked of the process group: operation, dtype and bytes of the whole tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:  # comes back with the tensors of this rank
            return NotImplemented
        outputs = func(*args, **(kwargs or {}))
        name = func._opname.strip("_").replace("_base", "").replace("all_", "all")
        if func.namespace in ("c10d", "_c10d_functional") and name != "wait_tensor":
            leaves = tree_leaves((args, kwargs, outputs))
            tensors = [x for x in leaves if isinstance(x, Tensor)]
            whole = max(tensors, key=lambda tensor: tensor.nbytes)
            self.seen.append((name, dtype_name(whole), whole.nbytes))
        return outputs


@contextmanager
def fake_world(size: int, rank: int) -> Iterator[World]:
    """This process as one rank of many, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield World(rank, size, CPU)
    finally:
        dist.destroy_process_group()


def last_step(form: StepForm, parallel: str, size: int, rank: int) -> dict[str, Any]:
    """The rank's collectives, and its parameters, gradients and moments."""
    fake = FakeTensorMode(allow_non_fake_inputs=True) if parallel == "fsdp" else nullcontext()
    loaded, training = form.loaded, training_config()
    with fake, NoValues():
        model = form.model()
    computed: dict[str, str] = {}
    found: dict[str, Any] = {"computed": computed}
    with fake_world(size, rank) as world, Collectives() as collectives, NoValues():
        # FSDP2 reads the ranks of its mesh, so here new tensors are real.
        called = parallelize(
            model, world, parallel=parallel, precision=form.precision, compile=False
        )
        if isinstance(called, DistributedDataParallel):
            called.register_comm_hook(None, _summed)
        model.encoder.layers[0].register_forward_pre_hook(  # after FSDP2's, which gathers
            lambda layer, inputs: computed.update(dtypes_of(layer, *inputs))
        )
        optimizer = build_optimizer(called, training)
        optimizer.register_step_pre_hook(
            lambda *_: found.update(gradients=described({n: p.grad for n, p in named(model)}))
        )
        with fake:
            for _ in range(STEPS[parallel]):
                collectives.seen.clear()
                train_step(
                    called,
                    optimizer,
                    loaded,
                    world=world,
                    accumulation=form.accumulation,
                    precision=form.precision,
                    clip=1.0,
                    sample=form.sample(world.device),
                )
    states = {n: optimizer.state[p] for n, p in named(model)}
    return found | {
        "collectives": collectives.seen,
        "parameters": described(dict(named(model))),
        "moments": described({n: s["exp_avg"] for n, s in states.items()}),
        "squares": described({n: s["exp_avg_sq"] for n, s in states.items()}),
    }


def dtypes_of(
    layer: Layer, _: Tensor, rows: Any, rotation: Rotation | None, *kept: Any
) -> dict[str, str]:
    """In which precision a layer computes, and what it is told about positions."""
    dtypes = {"weight": dtype_name(layer.attention.qkv.weight)}
    return dtypes if rotation is None else {**dtypes, "rotation": dtype_name(rotation[0])}


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def described(tensors: dict[str, Any]) -> dict[str, list[Any]]:
    """Of each tensor the whole shape, this rank's shape, the placement and the dtype."""
    return {name: _described(tensor) for name, tensor in tensors.items()}


def _described(tensor: Tensor) -> list[Any]:
    here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    placed = [str(x) for x in tensor.placements] if isinstance(tensor, DTensor) else []
    return [list(tensor.shape), list(here.shape), placed, dtype_name(here)]


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _summed(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """What DDP does with a bucket of gradients, divided by the number of ranks beforehand."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(buffer)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def run(job: str) -> list[dict[str, Any]]:
    """The last step of each of a job's ranks; a job is "FORM,PARALLEL,SIZE,RANK,RANK..."."""
    name, parallel, size, *ranks = job.split(",")
    form = FORMS_AND_PRESETS[name]
    return [last_step(form, parallel, int(size), int(rank)) for rank in ranks]
