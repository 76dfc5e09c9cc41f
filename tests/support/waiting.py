"""Waiting for what other processes do, and servers on the ports of this machine."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple, TypeVar

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


class Answer(NamedTuple):
    status: int
    text: str
    headers: HTTPMessage  # by name in any case

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask_once(url: str, path: str, values: Any = None, **headers: str) -> Answer:
    """GET, or POST of the values (JSON, or bytes as they are)."""
    with closing(HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=60)) as connection:
        if values is None:
            connection.request("GET", path, headers=headers)
        else:
            body = values if isinstance(values, bytes) else json.dumps(values).encode()
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        reply = connection.getresponse()
        return Answer(reply.status, reply.read().decode(), reply.headers)
