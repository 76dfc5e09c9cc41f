"""What a rank of an FSDP2 job holds while it gathers a checkpoint, without the other ranks.

torch's process group "fake" sends nothing; the tensors are real.
"""

import weakref
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clozeline.train.artifacts.snapshot import take_snapshot
from clozeline.train.engine.distributed import parallelize
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.pretraining.step import train_step
from tests.support.fake_ranks import fake_world
from tests.support.step_forms import FORMS
from tests.support.training_configs import training_config


class NewMemory(TorchDispatchMode):
    """Notes when storages of new tensors come and go.

    Only of tensors with memory: DTensor finds out shapes with fake ones, and has wrappers of
    results that are still under way; both claim the bytes of what they stand for.
    """

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = known  # addresses of storages that were there before
        self.changes: list[tuple[int, int]] = []  # number of a storage, bytes that it adds
        self._living: dict[int, int] = {}  # numbers by address, which is used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:  # comes back with the tensors of this rank
            return NotImplemented
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if type(tensor) in (Tensor, nn.Parameter):
                self._add(tensor)
        return outputs

    @property
    def most_beyond_kept(self) -> int:
        """Most bytes at once of storages that are not there any more."""
        kept, now = set(self._living.values()), [0]
        for number, size in self.changes:
            now.append(now[-1] + size * (number not in kept))
        return max(now)

    @property
    def left(self) -> int:
        return sum(size for _, size in self.changes)

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if storage.data_ptr() not in self.known and address not in self._living:
            self._living[address] = len(self.changes)
            self.changes.append((len(self.changes), size))
            weakref.finalize(storage, self._remove, address, size)

    def _remove(self, address: int, size: int) -> None:
        self.changes.append((self._living.pop(address), -size))


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(size: int, rank: int) -> list[int]:
    """[most bytes beyond the snapshot, bytes left, largest weight padded for all ranks, bytes of
    the snapshot], which rank 0 alone keeps."""
    form = FORMS["nano"]
    model = form.model()
    largest = max(-(-len(p) // size) * size * p[:1].nbytes for p in model.parameters())
    with fake_world(size, rank) as world:
        called = parallelize(model, world, parallel="fsdp", precision="fp32", compile=False)
        optimizer = build_optimizer(called, training_config())
        train_step(
            *(called, optimizer, form.loaded),
            world=world,
            accumulation=1,
            precision="fp32",
            clip=1.0,
        )
        states = [x for p in called.parameters() for x in (p, *optimizer.state[p].values())]
        with NewMemory({local(x).untyped_storage().data_ptr() for x in states}) as memory:
            snapshot = take_snapshot(called, optimizer, is_kept=rank == 0)
    kept = sum(x.nbytes for x in (*snapshot.weights.values(), *snapshot.moments.values()))
    return [memory.most_beyond_kept, memory.left, largest, kept]
