"""Waiting for what other processes do, and the ports of this machine where they do it."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


def wait_until(is_done: Callable[[], Result], what: str, *, seconds: float) -> Result:
    """The first true result of `is_done`. Raises TimeoutError, which names what was waited for."""
    deadline = time.monotonic() + seconds
    while not (found := is_done()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} for {seconds:.0f} s")
        time.sleep(0.05)
    return found


def is_listening(port: int) -> bool:
    """Whether a server of this machine takes connections at a port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
