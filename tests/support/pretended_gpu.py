"""A training step on fake CUDA tensors: what asks the driver in torch 2.13 is replaced.

Those are the backward pass (autograd's engine asks for CUDA's streams), which becomes a walk over
the same graph; the choice among attention's kernels (by the device's generation); page-locked
memory; and whether autocast is possible.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode


@contextmanager
def pretended_gpu():
    """Fake tensors, also of CUDA, without a device; yields their mode."""
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, ExitStack() as stack:
        absent = "torch.cuda.amp.common.amp_definitely_not_available"
        stack.enter_context(patch(absent, return_value=False))
        stack.enter_context(patch("torch.cuda.is_bf16_supported", return_value=True))
        yield fake


class WithoutDevice(TorchFunctionMode):
    """Does the backward pass, and chooses attention's kernel, without asking the device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
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


def _attention(query, key, value, mask, dropout_prob):
    """The kernel that torch takes on a GPU: FlashAttention without a mask in half precision."""
    aten = torch.ops.aten
    if mask is None and query.dtype != torch.float32:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_prob)[0]
    if mask is not None:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill(~mask, -torch.inf).expand(*query.shape[:3], key.shape[2])
    kernel = aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, mask, True, dropout_prob)[0]


def backward(loss):
    """Autograd's backward pass over the graph of `loss`, in its order: the newest node first."""
    gradients, nodes = {loss.grad_fn: {0: torch.ones_like(loss)}}, _nodes(loss.grad_fn)
    group = getattr(torch.utils.checkpoint, "GraphExecGroup", nullcontext)  # from torch 2.12 on
    with torch.no_grad(), group():
        while nodes:
            _pass_on(nodes.pop(), gradients)


def _nodes(root):
    """The nodes of the graph without those of weights, oldest first: inputs before outputs."""
    nodes, stack = {root}, [root]
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node not in nodes and not hasattr(node, "variable"):
                nodes.add(node)
                stack.append(node)
    return sorted(nodes, key=lambda node: node._sequence_nr())


def _pass_on(node, gradients):
    """Call a node on the sums of its outputs' gradients, and add to those of its inputs."""
    if (received := gradients.pop(node, None)) is None:
        return
    call = node.apply if isinstance(node, BackwardCFunction) else node
    outputs = call(*(received.get(i) for i in range(len(node._input_metadata))))
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
