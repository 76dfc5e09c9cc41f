"""Batches to a GPU while it works on those before.

The copy is made from pinned memory on a stream of its own, by the thread that makes batches ahead:
only that thread waits for it.
"""

from typing import TypeVar

import torch

from train.data.batch import LoadedBatch, Movable

AnyBatch = TypeVar("AnyBatch", bound=Movable)


class Transfer:
    """Copies to one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def send(self, loaded: LoadedBatch[AnyBatch]) -> LoadedBatch[AnyBatch]:
        """The same on the device, once it is all there."""
        with torch.cuda.stream(self._stream):
            moved = loaded.pin_memory().to(self._device, non_blocking=True)
        self._stream.synchronize()
        return moved


def received(loaded: LoadedBatch[AnyBatch]) -> LoadedBatch[AnyBatch]:
    """The same, for the stream of the caller.

    Else its memory would be free for the next copy as soon as nobody here names it any more, though
    the GPU may still have to read it.
    """
    for tensor in loaded.batch.tensors().values():
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream())
    return loaded
