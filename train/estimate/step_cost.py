"""What a training step needs: the real step, on tensors that have shapes and no memory.

    modern-base, 64 rows of 128 tokens  ->  6.7 GB, of which 1.4 stay, and 5.7e12 operations

`train_step` runs unchanged under FakeTensorMode, on a machine without the device. Three things need
a device in torch 2.13, and are done here in their place: the backward pass (autograd's engine asks
for CUDA's streams), which becomes a walk over the same graph; the choice among attention's kernels
(made by the device's generation), which is that of GPUs since 2020; and page-locked memory.

The kernels are eager ones: compiled, a step needs less memory, since it writes fewer results.
"""

import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
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
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, NO_PAIR, Examples
from clozeline.train.config import PretrainConfig
from clozeline.train.data.batch import LoadedBatch, collate
from clozeline.train.data.unpadded import collate_unpadded
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import autocast
from clozeline.train.pretraining.initial_weights import initial_model
from clozeline.train.pretraining.step import WordSampler, train_step


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A later step's needs in one process; the first has no moments yet."""

    state: int  # bytes of weights, moments, and gradients that wait for another pass
    peak: int  # bytes when memory is fullest
    pass_flops: float  # operations of one forward and backward pass
    optimizer_flops: float
    traffic: float  # bytes that all but the matrix products of a pass read and write


@cache
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
    loaded = longest_batch(rows * passes, data, unpadded=bool(training.unpadded))
    warnings.filterwarnings("ignore", message="CUDA is not available or torch_xla")
    memory = Memory()

    def faked(value: Tensor) -> Any:
        return torch.empty_like(fake.from_tensor(value), device=device)

    with FakeTensorMode(allow_non_fake_inputs=True) as fake, WithoutDevice(), memory:
        with device:
            built = _prepared(model, training, device)
        tensors = {name: faked(value) for name, value in loaded.batch.tensors().items()}
        loaded = replace(loaded, batch=replace(loaded.batch, **tensors))
        sample = WordSampler(np.ones(model.vocab_size), training.sampled_words, seed=0).at(1)
        if sample:
            sample = WordSample(*map(faked, sample))
        optimizer = build_optimizer(built, training)
        fixed: dict[str, Any] = {"accumulation": passes, "precision": training.precision}
        fixed |= {"world": World(0, 1, device), "clip": training.clip}
        before_update: list[tuple[int, int]] = []
        optimizer.register_step_pre_hook(
            lambda *_: before_update.append((memory.flops, memory.traffic))
        )
        # With a sample, only the steps that are logged have the logits of all words.
        for count_hits in [True, True] if sample is None else [True, True, False]:
            memory.flops = memory.traffic = 0
            train_step(built, optimizer, loaded, count_hits=count_hits, sample=sample, **fixed)
        waiting = sum(weight.nbytes for weight in built.parameters()) if passes > 1 else 0
    flops, traffic = before_update[-1]
    return StepCost(
        state=memory.bytes + waiting,
        peak=memory.fullest,
        pass_flops=flops / passes,
        optimizer_flops=memory.flops - flops,
        traffic=traffic / passes,
    )


def _prepared(
    config: BertConfig, training: PretrainConfig, device: torch.device
) -> BertForPretraining:
    """The model as the trainer prepares it."""
    model = initial_model(config, training).train()

    def in_precision(forward: Callable[..., Tensor], *inputs: Any) -> Tensor:
        with autocast(training.precision, device):
            return forward(*inputs)

    if training.activation_checkpointing:
        for layer in model.encoder.layers:  # torch leaves autocast out when it computes them again
            assert isinstance(layer, Layer)
            forward = partial(in_precision, layer._forward)
            layer._forward = forward  # type: ignore[method-assign]
    return model


class Memory(TorchDispatchMode):
    """Counts the bytes of all living tensors, operations, and what all but they move.

    Not `FlopCounterMode`, whose hooks keep what a layer computes for the second time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.fullest = 0
        self.flops = 0
        self.traffic = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

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

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._storages or not tensor.numel():
            return

        def remove(_: object) -> None:
            del self._storages[key]
            self.bytes -= size

        self._storages[key] = weakref.ref(storage, remove)
        self.bytes += size
        self.fullest = max(self.fullest, self.bytes)


class WithoutDevice(TorchFunctionMode):
    """Does the backward pass, and chooses attention's kernel, without asking the device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.backward:
            with self:  # checkpointing computes forward again
                return backward(args[0])
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
    aten = torch.ops.aten
    if mask is not None:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill(~mask, -torch.inf).expand(*query.shape[:3], key.shape[2])
    if query.device.type == "cpu":
        on_cpu = partial(aten._scaled_dot_product_flash_attention_for_cpu, attn_mask=mask)
        outputs = on_cpu(query, key, value, dropout_prob, False)
    elif mask is None and query.dtype != torch.float32:
        outputs = aten._scaled_dot_product_flash_attention(query, key, value, dropout_prob)
    else:
        kernel = aten._scaled_dot_product_efficient_attention
        outputs = kernel(query, key, value, mask, True, dropout_prob)
    attended: Tensor = outputs[0]
    return attended


def backward(loss: Tensor) -> None:
    """Autograd's backward pass over the graph of `loss`, in its order: the newest node first.

    What a node saved is let go as soon as its gradients are computed.
    """
    gradients: dict[Any, dict[int, Tensor]] = {loss.grad_fn: {0: torch.ones_like(loss)}}
    nodes = _nodes(loss.grad_fn)
    del loss
    group = getattr(torch.utils.checkpoint, "GraphExecGroup", nullcontext)  # from torch 2.12 on
    with torch.no_grad(), group():
        while nodes:
            _pass_on(nodes.pop(), gradients)


def _nodes(root: Any) -> list[Any]:
    """The nodes of the graph without those of weights, oldest first: inputs before outputs."""
    nodes, stack = {root}, [root]
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node not in nodes and not hasattr(node, "variable"):
                nodes.add(node)
                stack.append(node)
    return sorted(nodes, key=lambda node: node._sequence_nr())


def _pass_on(node: Any, gradients: dict[Any, dict[int, Tensor]]) -> None:
    """Call a node on the sums of its outputs' gradients, and add to those of its inputs."""
    if (received := gradients.pop(node, None)) is None:
        return
    call = node.apply if isinstance(node, BackwardCFunction) else node
    outputs = call(*(received.get(i) for i in range(len(node._input_metadata))))
    del received, call
    _release(node)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for gradient, (other, number) in zip(outputs, node.next_functions, strict=False):
        if gradient is None or other is None:
            continue
        wanted = other._input_metadata[number]  # autograd sums over what was broadcast
        gradient = gradient.sum_to_size(wanted.shape).to(wanted.dtype)
        if hasattr(other, "variable"):
            other(gradient)
        else:
            slots = gradients.setdefault(other, {})
            slots[number] = slots[number] + gradient if number in slots else gradient


def _release(node: Any) -> None:
    """Let go of what a node saved, as autograd does; the node itself stays until the losses go."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            values = getattr(node, name)
            for saved in values if isinstance(values, tuple) else (values,):
                if isinstance(saved.data, Tensor) and saved.data.dim():  # a number takes none
                    saved.register_hooks(lambda _: None, lambda nothing: nothing)
                elif hasattr(saved.data, "handles"):  # of a layer that is computed again
                    saved.data.handles.clear()


def longest_batch(rows: int, data: DataConfig, *, unpadded: bool) -> LoadedBatch[Any]:
    """A batch of `rows` as long as the data allows, with as many masked tokens; one piece each."""
    length, masks = data.max_seq_length, min(data.predictions, data.max_seq_length - 2)

    def repeated(row: Any, dtype: Any) -> Ragged:
        return Ragged(np.tile(np.asarray(row, dtype), rows), offsets_of([len(row)] * rows))

    number = np.arange(rows)
    documents = number.astype(np.uint64)
    pieces = offsets_of([1] * rows)
    examples = Examples(
        input_ids=repeated([5] * length, np.uint32),
        masked_lm_positions=repeated(range(1, masks + 1), np.uint16),
        masked_lm_labels=repeated([5] * masks, np.uint32),
        length_a=np.full(rows, length // 2 if data.has_pairs else length, np.uint16),
        next_sentence_label=np.full(rows, B_FOLLOWS_A if data.has_pairs else NO_PAIR, np.int8),
        document_a=documents,
        document_b=documents,
        piece_lengths=repeated([length], np.uint16) if data.is_packed else None,
        piece_documents=Ragged(documents, pieces) if data.is_packed else None,
    )
    sizes = {"max_seq_length": length, "max_predictions": data.predictions}
    if unpadded:
        batch: Any = collate_unpadded(examples, number, **sizes)
    else:
        batch = collate(examples, number, **sizes, pad_id=0)
    # With 0 tokens, as if most were padding, so that a step does not leave the mask out.
    return LoadedBatch(
        batch=batch, next_position=0, num_tokens=0, num_predictions=1, num_pairs=1, digest=0
    )
