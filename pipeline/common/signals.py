"""Signals to this process, which the operating system gives to its main thread."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SOON, LATELY = 0.01, 60.0  #: seconds
Handler = Callable[[int, FrameType | None], None]
#: The signals that are to end this process: number and time of each.
_interrupts: list[tuple[int, float]] = []


def interrupt(number: int, _: object) -> None:
    """What Python does at SIGINT by itself, with the number of the signal."""
    _interrupts.append((number, time.monotonic()))
    raise KeyboardInterrupt(number)


def last_interrupts() -> list[int]:
    """The signals of the last minute: a library may have made another error of one."""
    return [number for number, when in _interrupts if time.monotonic() - when < LATELY]


def repeat_lost_interrupt(lost: "sys.UnraisableHookArgs") -> None:
    """As `sys.unraisablehook`: an interrupt that came in a callback, which lost it, comes again."""
    if isinstance(lost.exc_value, KeyboardInterrupt) and _interrupts:
        number, _ = _interrupts[-1]
        threading.Timer(SOON, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(lost)


@contextmanager
def handled(kinds: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Signals of these kinds go to `handler`; a block of another thread changes nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = outside_imports(handler)
    before = {kind: signal.signal(kind, handler) for kind in kinds if is_main}
    try:
        yield
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)


def outside_imports(handler: Handler) -> Handler:
    """The handler, called when no module is being imported.

    What it raises in an import may be lost in a callback, leave the lock of all imports taken, or
    abort the process in C++: of 40 processes that got SIGTERM while they imported torch, 3 ran
    on or hung.
    """

    waiting: list[int] = []

    def receive(kind: int, frame: FrameType | None) -> None:
        if kind != signal.SIGALRM:
            waiting.append(kind)
        if _is_importing(frame):
            signal.signal(signal.SIGALRM, receive)
            signal.setitimer(signal.ITIMER_REAL, SOON)
        else:
            while waiting:
                handler(waiting.pop(0), frame)

    return receive


def receive_delayed() -> None:
    """Let the handler of a signal that waits for the end of an import run now."""
    while signal.getitimer(signal.ITIMER_REAL)[0]:
        time.sleep(SOON)


def _is_importing(frame: FrameType | None) -> bool:
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
