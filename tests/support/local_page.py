"""A server that runs in this process, and requests to the pages of `clozeline view`."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from clozeline.pipeline.common.http_server import HttpServer


@dataclass(frozen=True)
class Received:
    """The answer to a request."""

    status: int
    text: str
    headers: http.client.HTTPMessage  # by name in any case

    @property
    def json(self) -> Any:
        """The answer as plain values."""
        return json.loads(self.text)


@contextmanager
def running(server: HttpServer) -> Iterator[HttpServer]:
    """The server answers from a thread."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def request(
    server: HttpServer,
    path: str,
    *,
    method: str = "GET",
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> Received:
    """One request, with these headers besides those that every client sends."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return Received(reply.status, reply.read().decode(), reply.headers)
    finally:
        connection.close()


def post(server: HttpServer, path: str, values: Any) -> Received:
    """Values as the pages' own scripts send them."""
    headers = {"Content-Type": "application/json"}
    return request(server, path, method="POST", body=json.dumps(values), headers=headers)
