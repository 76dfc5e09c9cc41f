"""Signals to this process, which the operating system gives to its main thread."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def handled(
    kinds: Iterable[signal.Signals], handler: Callable[[int, object], None]
) -> Iterator[None]:
    """Signals of these kinds go to `handler`; a block of another thread changes nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {kind: signal.signal(kind, handler) for kind in kinds if is_main}
    try:
        yield
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)
