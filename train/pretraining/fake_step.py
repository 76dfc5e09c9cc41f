"""What a training step needs, from the real step on tensors that have shapes and no memory.

    modern-base, 64 rows of 128 tokens  ->  peak 6.7 GB (weights 0.5, ...), 5.7e12 operations

`train_step` runs unchanged under FakeTensorMode, on a machine without the device. Three things need
a device in torch 2.13, and are done here in their place: the backward pass (autograd's engine asks
for CUDA's streams), which becomes a walk over the same graph; the choice among attention's kernels
(made by the device's generation), which is that of GPUs since 2020; and page-locked memory.

The kernels are eager ones: compiled, a step needs less memory, since it writes fewer results.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from clozeline.model.bert import Layer
from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining, WordSample
from clozeline.pipeline.config import DataConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import autocast
from clozeline.train.pretraining.initial_weights import initial_model
from clozeline.train.pretraining.micro_batch import longest_batch
from clozeline.train.pretraining.step import train_step
from clozeline.train.pretraining.word_sampler import WordSampler

PARTS = ("weights", "gradients", "optimizer", "activations", "logits")


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A later step's needs in one process; the first has no moments yet."""

    parts: dict[str, int]  # bytes by PARTS when memory is fullest
    pass_flops: float  # operations of one forward and backward pass
    optimizer_flops: float
    traffic: float  # bytes that all but the matrix products of a pass read and write

    @property
    def peak(self) -> int:
        """Bytes when memory is fullest."""
        return sum(self.parts.values())


def step_cost(
    model: BertConfig,
    training: PretrainConfig,
    data: DataConfig,
    *,
    rows: int,
    passes: int,
    device: torch.device,
) -> StepCost:
    """The cost of a step with this many passes of `rows` of the longest examples each."""
    real = longest_batch(rows * passes, model, data, unpadded=training.unpadded)
    warnings.filterwarnings("ignore", message="CUDA is not available or torch_xla")
    memory, world = Memory(model.padded_vocab_size), World(0, 1, device)

    def faked(value: Tensor) -> Any:
        return torch.empty_like(fake.from_tensor(value), device=device)

    with FakeTensorMode(allow_non_fake_inputs=True) as fake, WithoutDevice(memory), memory:
        memory.kind = "weights"
        with device:
            built = _prepared(model, training, device)
        memory.kind = "activations"
        tensors = {name: faked(value) for name, value in real.batch.tensors().items()}
        loaded = replace(real, batch=replace(real.batch, **tensors))
        sample = WordSampler(np.ones(model.vocab_size), training.sampled_words, seed=0).at(1)
        if sample:
            sample = WordSample(*map(faked, sample))
        optimizer = build_optimizer(built, training)
        step = partial(
            train_step,
            built,
            optimizer,
            loaded,
            world=world,
            accumulation=passes,
            precision=training.precision,
            clip=training.clip,
            sample=sample,
        )
        # With a sample, only the steps that are logged have the logits of all words.
        for count_hits in [True, True] if sample is None else [True, True, False]:
            costs = _counted(partial(step, count_hits=count_hits), optimizer, memory)
        flops, traffic, optimizer_flops = costs
    return StepCost(
        parts={part: memory.fullest[part] for part in PARTS},
        pass_flops=flops / passes,
        optimizer_flops=optimizer_flops,
        traffic=traffic / passes,
    )


def _counted(
    step: Callable[[], object], optimizer: torch.optim.Optimizer, memory: "Memory"
) -> tuple[float, float, float]:
    """Operations and traffic of a step before its update, and the operations of the update."""
    before_update: list[float] = []

    def update_begins(*_: object) -> None:
        before_update[:] = [memory.flops, memory.traffic]
        memory.kind = "optimizer"

    begins = optimizer.register_step_pre_hook(update_begins)
    memory.flops, memory.traffic, memory.kind = 0, 0, "activations"
    step()
    begins.remove()
    flops, traffic = before_update
    return flops, traffic, memory.flops - flops


def _prepared(
    config: BertConfig, training: PretrainConfig, device: torch.device
) -> BertForPretraining:
    """The model as the trainer prepares it."""
    model = initial_model(config, training).train()

    def in_precision(forward: Callable[..., Tensor], *inputs: Any) -> Tensor:
        with autocast(training.precision, device):
            return forward(*inputs)

    if training.activation_checkpointing:
        for layer in model.encoder.layers:  # the second time, torch leaves autocast out
            assert isinstance(layer, Layer)
            forward = partial(in_precision, layer._forward)
            layer._forward = forward  # type: ignore[method-assign]
    return model


class Memory(TorchDispatchMode):
    """Counts the bytes of all living tensors, by part, operations, and what all but they move.

    Not `FlopCounterMode`, whose hooks keep what a layer computes for the second time.
    """

    def __init__(self, logits_width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.logits_width = logits_width
        self.kind = "activations"
        self.now: Counter[str] = Counter()
        self.fullest: Counter[str] = Counter()
        self.flops = 0
        self.traffic = 0
        self._storages: dict[int, tuple[weakref.ref[Any], str, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(outputs) if isinstance(x, Tensor)]
        for tensor in tensors:
            self._add(tensor)
        if count := flop_registry.get(func._overloadpacket):
            self.flops += count(*args, **(kwargs or {}), out_val=outputs)
        elif not getattr(func, "is_view", False):
            inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            self.traffic += sum(x.nbytes for x in (*inputs, *tensors))
        return outputs

    def is_gradient(self, tensor: Tensor) -> None:
        """Count a tensor as a weight's gradient from now on."""
        key = id(tensor.untyped_storage())
        if key in self._storages:
            reference, kind, size = self._storages[key]
            self.now[kind] -= size
            self.now["gradients"] += size
            self._storages[key] = reference, "gradients", size

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages or not tensor.numel():
            return
        is_logits = self.kind == "activations" and tensor.shape[-1:] == (self.logits_width,)
        kind, size = "logits" if is_logits else self.kind, storage.nbytes()
        self._storages[key] = weakref.ref(storage, lambda _: self._remove(key)), kind, size
        self.now[kind] += size
        if self.now.total() > self.fullest.total():
            self.fullest = self.now.copy()

    def _remove(self, key: int) -> None:
        _, kind, size = self._storages.pop(key)
        self.now[kind] -= size


class WithoutDevice(TorchFunctionMode):
    """Does the backward pass, and chooses attention's kernel, without asking the device."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__()
        self.memory = memory

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.backward:
            with self:  # checkpointing computes forward again
                return backward(args[0], self.memory)
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.__bool__:  # whether a weight is drawn again, or gradients are clipped
            return False
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_prob: float
) -> Tensor:
    """The kernel that torch takes on a GPU: FlashAttention without a mask in half precision."""
    found: tuple[Tensor, ...]
    if mask is not None:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill(~mask, -torch.inf).expand(*query.shape[:3], key.shape[2])
    if query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        found = kernel(query, key, value, dropout_prob, False, attn_mask=mask)
    elif mask is None and query.dtype != torch.float32:
        found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_prob)
    else:
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        found = kernel(query, key, value, mask, True, dropout_prob)
    return found[0]


def backward(loss: Tensor, memory: Memory | None = None) -> None:
    """Autograd's backward pass over the graph of `loss`, node by node, in autograd's order.

    What a node saved is let go as soon as its gradients are computed.
    """
    root = loss.grad_fn
    waiting = _numbers_of_consumers(root)
    gradients: dict[Any, dict[int, Tensor]] = {root: {0: torch.ones_like(loss)}}
    ready: list[Any] = [root]
    del root, loss
    group = getattr(torch.utils.checkpoint, "GraphExecGroup", nullcontext)  # from torch 2.12 on
    with torch.no_grad(), group():
        while ready:
            newest = max(ready, key=lambda node: node._sequence_nr())
            ready.remove(newest)
            _pass_on(newest, gradients, waiting, ready, memory)


def _pass_on(
    node: Any,
    gradients: dict[Any, dict[int, Tensor]],
    waiting: Counter[Any],
    ready: list[Any],
    memory: Memory | None,
) -> None:
    """Call a node on the sums of its outputs' gradients, and add to those of its inputs."""
    found = gradients.pop(node, None)
    outputs: Any = ()
    if found is not None:
        call = node.apply if isinstance(node, BackwardCFunction) else node
        outputs = call(*(found.get(i) for i in range(len(node._input_metadata))))
        del found, call
        _release(node)
    if memory and hasattr(node, "variable"):
        memory.is_gradient(node.variable.grad)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for place, (other, number) in enumerate(node.next_functions):
        if other is None:
            continue
        gradient = outputs[place] if place < len(outputs) else None
        if gradient is not None:
            wanted = other._input_metadata[number]  # autograd sums over what was broadcast
            gradient = gradient.sum_to_size(wanted.shape).to(wanted.dtype)
            slots = gradients.setdefault(other, {})
            slots[number] = slots[number] + gradient if number in slots else gradient
        waiting[other] -= 1
        if not waiting[other]:
            del waiting[other]
            ready.append(other)


def _release(node: Any) -> None:
    """Let go of what a node saved, as autograd does; the node itself stays until the losses go."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            found = getattr(node, name)
            for saved in found if isinstance(found, tuple) else (found,):
                if isinstance(saved.data, Tensor) and saved.data.dim():  # a number takes none
                    saved.register_hooks(lambda _: None, lambda nothing: nothing)
                elif hasattr(saved.data, "handles"):  # of a layer that is computed again
                    saved.data.handles.clear()


def _numbers_of_consumers(root: Any) -> Counter[Any]:
    """How many edges of the graph lead to each node."""
    edges: Counter[Any] = Counter()
    stack, seen = [root], {root}
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None:
                edges[node] += 1
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
    return edges
