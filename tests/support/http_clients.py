"""Our HTTP servers in this process, and requests to them."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPMessage
from threading import Thread
from typing import Any, NamedTuple, Self

from clozeline.pipeline.common.http_server import HttpServer


class Answer(NamedTuple):
    status: int
    text: str
    headers: HTTPMessage  # by name in any case

    @classmethod
    def on(cls, connection: HTTPConnection) -> Self:
        reply = connection.getresponse()
        return cls(reply.status, reply.read().decode(), reply.headers)

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def raw(server: HttpServer, sent: bytes) -> bytes:
    """All that the server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(65536), b""))


def connect(url: str) -> HTTPConnection:
    return HTTPConnection(url.removeprefix("http://"), timeout=60)


def ask(connection: HTTPConnection, path: str, values: Any = None, **headers: str) -> Answer:
    """GET, or POST of the values (JSON, or bytes as they are)."""
    if values is None:
        connection.request("GET", path, headers=headers)
    else:
        body = values if isinstance(values, bytes) else json.dumps(values).encode()
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
    return Answer.on(connection)


def ask_once(url: str, path: str, values: Any = None, **headers: str) -> Answer:
    """As `ask`, over a connection of its own."""
    with closing(connect(url)) as connection:
        return ask(connection, path, values, **headers)


@contextmanager
def running(server: HttpServer) -> Iterator[HttpServer]:
    """The server answers from a thread."""
    thread = Thread(target=server.run)
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
) -> Answer:
    """One request, with these headers besides those that every client sends."""
    with closing(connect(server.url)) as connection:
        connection.request(method, path, body, headers or {})
        return Answer.on(connection)


def post(server: HttpServer, path: str, values: Any) -> Answer:
    """Values as the pages' own scripts send them."""
    return ask_once(server.url, path, values)
