"""What is done ahead of a training step: shards are fetched, batches made and copied to the GPU.

    OpenShards     a few threads fetch the shards of the next pool
    prefetched     one thread makes slabs of batches
    DeviceCopy     the same thread copies their batches to a GPU, on a stream of its own

numpy and torch release the interpreter lock while they move bytes, so threads are enough to overlap
all this with the training step, and nothing is sent between processes.
"""

import atexit
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

import torch

from clozeline.pipeline.common.paths import AnyPath, is_local
from clozeline.pipeline.dataset.schema import Examples
from clozeline.train.data.batch import AnyBatch, LoadedBatch

LOCAL_FETCHES = 8  # at a time: these check shards, which takes a core each
FETCHES = 32  # from a store: these wait; the first batch of 64 streams needs as many shards
THREAD = "prefetch"


def fetches_for(folder: AnyPath) -> int:
    """How many shards of a folder are fetched at a time."""
    return LOCAL_FETCHES if is_local(folder) else FETCHES


class OpenShards:
    """Reads shards by number with `read`; at the end of its context nothing more is fetched.

    With `threads` 0 a shard is read when it is asked for, and none is fetched ahead.
    """

    def __init__(self, read: Callable[[int], Examples], *, threads: int = LOCAL_FETCHES) -> None:
        self._read = read
        self._opened: dict[int, Examples] = {}
        self._coming: dict[int, Future[Examples]] = {}
        self._threads = ThreadPoolExecutor(threads, "fetch") if threads else None

    def __enter__(self) -> Self:
        atexit.register(self.__exit__)  # an open one, before the modules that it needs are gone
        return self

    def __exit__(self, *_: object) -> None:
        if threads := self._threads:
            self._threads = None
            # Without waiting for the threads: the garbage collector may have called this in one.
            threads.shutdown(wait=False, cancel_futures=True)
            atexit.unregister(self.__exit__)

    def keep(self, needed: Iterable[int], *, ahead: Iterable[int]) -> None:
        """Drop all other shards, and start fetching those of these that are not here yet."""
        wanted = dict.fromkeys([*needed, *ahead])
        for shard in self._opened.keys() - wanted.keys():
            del self._opened[shard]
        for shard in self._coming.keys() - wanted.keys():
            self._coming.pop(shard).cancel()
        if self._threads:
            for shard in wanted:
                if shard not in self._opened and shard not in self._coming:
                    self._coming[shard] = self._threads.submit(self._read, shard)

    def __getitem__(self, shard: int) -> Examples:
        """The rows of a shard, which is read again if that failed before. Raises what it raises."""
        coming = self._coming.pop(shard, None)
        if coming and not (coming.done() and coming.exception()):
            self._opened[shard] = coming.result()
        elif shard not in self._opened:
            self._opened[shard] = self._read(shard)
        return self._opened[shard]


T = TypeVar("T")


def prefetched(items: Generator[T], depth: int) -> Generator[T]:
    """The same items in the same order; a thread makes up to `depth` (at least 1) of them ahead.

    An exception of `items` is raised here after the items before it. When this generator is closed,
    collected or exhausted, and before the interpreter exits, the thread ends and `items` is closed.
    """
    thread, end = ThreadPoolExecutor(1, THREAD), object()
    coming = deque(thread.submit(next, items, end) for _ in range(depth))
    is_open = [True]

    def close() -> None:
        is_open.clear()
        # The garbage collector may run in the thread, which then ends after its item.
        is_other = not threading.current_thread().name.startswith(THREAD)
        thread.shutdown(wait=is_other, cancel_futures=True)
        if is_other:
            items.close()

    atexit.register(close)
    try:
        while (item := coming.popleft().result()) is not end:
            coming.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # not the end
            del item  # otherwise one more stays in memory while the next one is made
    finally:
        if is_open:  # otherwise it was closed at exit, and the interpreter is shutting down
            close()
            atexit.unregister(close)


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
