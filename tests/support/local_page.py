"""Requests to a server of `clozeline view` that runs in this process."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from clozeline.pipeline.view.server import LocalServer


@dataclass(frozen=True)
class Received:
    """The answer to a request."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        """The answer as plain values."""
        return json.loads(self.text)


@contextmanager
def running(server: LocalServer) -> Iterator[LocalServer]:
    """The server answers from a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def request(
    server: LocalServer,
    path: str,
    *,
    method: str = "GET",
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> Received:
    """One request, with these headers besides those that every client sends."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return Received(reply.status, reply.read().decode(), dict(reply.getheaders()))
    finally:
        connection.close()


def post(server: LocalServer, path: str, values: Any) -> Received:
    """Values as the pages' own scripts send them."""
    headers = {"Content-Type": "application/json"}
    return request(server, path, method="POST", body=json.dumps(values), headers=headers)
