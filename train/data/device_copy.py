"""Copies batches to a GPU while it works on earlier ones.

The copy is made from pinned memory on a separate stream by the prefetch thread, and only that
thread waits for it.
"""

import torch

from clozeline.train.data.batch import AnyBatch, LoadedBatch


class DeviceCopy:
    """Copies to one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, loaded: LoadedBatch[AnyBatch]) -> LoadedBatch[AnyBatch]:
        """The batch on the device, after the copy is complete."""
        # The current device is set per thread: without this, every rank would have a context on
        # GPU 0, which takes hundreds of megabytes there.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            moved = loaded.pin_memory().to(self._device, non_blocking=True)
            self._stream.synchronize()
        return moved


def mark_in_use(loaded: LoadedBatch[AnyBatch]) -> LoadedBatch[AnyBatch]:
    """The same batch, its memory marked as used by the caller's CUDA stream.

    Otherwise the allocator would give its memory to the next copy as soon as Python drops the last
    reference, although kernels that read it may still be queued.
    """
    for tensor in loaded.batch.tensors().values():
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream())
    return loaded
