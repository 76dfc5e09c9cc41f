"""Work done ahead of time in one thread.

numpy and torch let go of the interpreter lock while they move bytes, so a thread is enough to hide
the making of batches behind the training step, and nothing has to be sent between processes.
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
    """What is put after the last item."""


def prefetched(items: Generator[T], depth: int) -> Generator[T]:
    """The same items, of which up to `depth` (at least 1) are made before they are asked for.

    What `items` raises is raised here, in its turn. The thread ends, and `items` is closed in it,
    when this generator is closed, collected or exhausted, and before the interpreter exits.
    """
    queue: Queue[T | _Failure | _End] = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, queue, stop), name="prefetch", daemon=True)

    def end() -> None:
        stop.set()
        _drain(queue)
        if thread is not threading.current_thread():  # collected by the garbage collector in there
            thread.join()

    atexit.register(end)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        if not stop.is_set():  # else it was ended at exit, and this is the interpreter's last sweep
            end()
            atexit.unregister(end)


def _fill(items: Generator[T], queue: "Queue[T | _Failure | _End]", stop: threading.Event) -> None:
    try:
        for item in items:
            queue.put(item)
            del item  # or it would be held, a slab too many, while the next one is made
            if stop.is_set():
                break
        items.close()
        last: _Failure | _End = _End()
    except BaseException as error:  # whatever it is, it belongs to the one who asked
        last = _Failure(error)
    if not stop.is_set():
        queue.put(last)


def _drain(queue: "Queue[T | _Failure | _End]") -> None:
    """Room for the thread's next put, so that it comes to look whether it should stop."""
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
