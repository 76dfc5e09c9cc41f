"""Clients of `clozeline serve`: requests over connections that stay open."""

import json
import time
from contextlib import closing
from http.client import HTTPConnection
from threading import Thread
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def connect(url: str) -> HTTPConnection:
    host, _, port = url.removeprefix("http://").partition(":")
    return HTTPConnection(host, int(port), timeout=60)


def ask(connection: HTTPConnection, path: str, values: Any = None, **headers: str) -> Answer:
    """GET, or POST of the values (JSON, or bytes as they are)."""
    if values is None:
        connection.request("GET", path, headers=headers)
    else:
        body = values if isinstance(values, bytes) else json.dumps(values).encode()
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return Answer(response.status, response.read().decode())


def ask_once(url: str, path: str, values: Any = None, **headers: str) -> Answer:
    """As `ask`, over a connection of its own."""
    with closing(connect(url)) as connection:
        return ask(connection, path, values, **headers)


def latencies(url: str, texts: list[str], *, clients: int, requests: int) -> list[float]:
    """Seconds of each of `requests` requests of one text, by concurrent clients."""
    found: list[float] = []

    def client(number: int) -> None:
        with closing(connect(url)) as connection:
            for index in range(number, requests, clients):
                start = time.perf_counter()
                answer = ask(connection, "/classify", {"texts": [texts[index % len(texts)]]})
                assert answer.status == 200, answer
                found.append(time.perf_counter() - start)

    threads = [Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == requests
    return found
