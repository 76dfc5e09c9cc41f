"""Prefetching in one thread.

numpy and torch release the interpreter lock while they move bytes, so a thread is enough to overlap
batch preparation with the training step, and nothing is sent between processes.
"""

import atexit
import threading
from collections.abc import Generator
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class _End:
    """Put into the queue after the last item."""


def prefetched(items: Generator[T], depth: int) -> Generator[T]:
    """The same items in the same order; a thread makes up to `depth` (at least 1) of them ahead.

    An exception of `items` is raised here after the items before it. When this generator is closed,
    collected or exhausted, and before the interpreter exits, the thread closes `items` and ends.
    """
    queue: Queue[T | _Failure | _End] = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, queue, stop), name="prefetch", daemon=True)

    def end() -> None:
        stop.set()
        _drain(queue)
        if thread is not threading.current_thread():  # the garbage collector may run in the thread
            thread.join()

    atexit.register(end)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        if not stop.is_set():  # otherwise it ended at exit, and the interpreter is shutting down
            end()
            atexit.unregister(end)


def _fill(items: Generator[T], queue: "Queue[T | _Failure | _End]", stop: threading.Event) -> None:
    try:
        for item in items:
            queue.put(item)
            del item  # otherwise one more slab stays in memory while the next one is made
            if stop.is_set():
                break
        items.close()
        last: _Failure | _End = _End()
    except BaseException as error:  # all of them are raised in the consumer
        last = _Failure(error)
    if not stop.is_set():
        queue.put(last)


def _drain(queue: "Queue[T | _Failure | _End]") -> None:
    """Empty the queue, so that a thread blocked in `put` continues and sees the stop flag."""
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
