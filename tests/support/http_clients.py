"""Requests to servers on this machine."""

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple


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
