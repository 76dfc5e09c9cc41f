"""Prefetching in one thread.

numpy and torch release the interpreter lock while they move bytes, so a thread is enough to overlap
batch preparation with the training step, and nothing is sent between processes.
"""

import atexit
import threading
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """Put into the queue after the last item."""

    error: BaseException | None


def prefetched(items: Generator[T], depth: int) -> Generator[T]:
    """The same items in the same order; a thread makes up to `depth` (at least 1) of them ahead.

    An exception of `items` is raised here after the items before it. When this generator is closed,
    collected or exhausted, and before the interpreter exits, the thread closes `items` and ends.
    """
    queue: Queue[T | _End] = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, queue, stop), name="prefetch", daemon=True)

    def end() -> None:
        stop.set()
        with suppress(Empty):  # a thread blocked in `put` continues and sees the flag
            while True:
                queue.get_nowait()
        if thread is not threading.current_thread():  # the garbage collector may run in the thread
            thread.join()

    atexit.register(end)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            yield item
        if item.error:
            raise item.error
    finally:
        if not stop.is_set():  # otherwise it ended at exit, and the interpreter is shutting down
            end()
            atexit.unregister(end)


def _fill(items: Generator[T], queue: "Queue[T | _End]", stop: threading.Event) -> None:
    end = _End(None)
    try:
        for item in items:
            queue.put(item)
            del item  # otherwise one more slab stays in memory while the next one is made
            if stop.is_set():
                break
        items.close()
    except BaseException as error:  # all of them are raised in the consumer
        end = _End(error)
    if not stop.is_set():
        queue.put(end)
