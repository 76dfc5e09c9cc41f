"""An HTTP server for this machine alone: 127.0.0.1, own pages only.

    GET http://127.0.0.1:43521/examples     ->  200
    the same with Host: evil.example        ->  403: a name that was pointed here (DNS rebinding)
    the same from a page of another site    ->  403: Origin, Sec-Fetch-Site
    POST without Content-Type: application/json  ->  415: no form of another site can send that

Text reaches the browser escaped, and the policy of every answer allows only this server's scripts.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl

from clozeline.pipeline.common.errors import InputError

ADDRESS: Final = "127.0.0.1"
MOST_BYTES = 100_000  # of a request's body
TIMEOUT = 30  # seconds until an idle connection is closed
HTML, JSON, CSS, JAVASCRIPT = (
    f"{kind}; charset=utf-8"
    for kind in ("text/html", "application/json", "text/css", "text/javascript")
)
#: Charts have style attributes, so styles may be inline; scripts may not.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    body: str
    kind: str = HTML
    status: int = 200
    location: str | None = None  # where to go instead


Values = Mapping[str, Any]  # of the query, or of the JSON that was posted
Route = Callable[[Values], Reply]


def number_of(values: Values, name: str) -> int:
    """A number from the address, 0 by default; it may have separators.

    Raises InputError for other text, and for a number of more than 18 digits.
    """
    text = str(values.get(name, 0)).replace(",", "").strip()
    if not re.fullmatch("[0-9]{1,18}", text):
        raise InputError(
            f"{name} is {text[:20]!r}; it must be a number from 0, of 18 digits at most."
        )
    return int(text)


class LocalServer(ThreadingHTTPServer):
    """Answers the routes, by method and path ("GET /examples"), until it is shut down.

    `port` 0 takes a free one. `on_error` makes the page for an InputError or an unknown path.
    Raises InputError if the port cannot be used.
    """

    daemon_threads = True

    def __init__(
        self, routes: Mapping[str, Route], on_error: Callable[[int, str], Reply], *, port: int = 0
    ) -> None:
        self.routes, self.on_error = routes, on_error
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used ({error.strerror}); give another --port."
            ) from error

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The values of the Host header that are answered."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that left is not an error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    timeout = TIMEOUT

    def do_GET(self) -> None:
        self._answer(dict(parse_qsl(self.path.partition("?")[2])))

    def do_POST(self) -> None:
        if refusal := self._refusal() or self._body_refusal():
            self._send(refusal)
            return
        try:
            values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            self._send(_refused(HTTPStatus.BAD_REQUEST, "the body is not a JSON object"))
            return
        self._answer(values)

    def _answer(self, values: Values) -> None:
        if refusal := self._refusal():
            self._send(refusal)
            return
        route = self.server.routes.get(f"{self.command} {self.path.partition('?')[0]}")
        try:
            if route is None:
                reply = self.server.on_error(HTTPStatus.NOT_FOUND, "There is no such page.")
            else:
                reply = route(values)
        except InputError as error:
            reply = self.server.on_error(HTTPStatus.BAD_REQUEST, str(error))
            if self.command == "POST":
                reply = _refused(HTTPStatus.BAD_REQUEST, str(error))
        except Exception:  # the terminal has the traceback, and the server stays up
            traceback.print_exc()
            reply = _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "an error; see the terminal")
        self._send(reply)

    def _refusal(self) -> Reply | None:
        """The answer to a request that this server's own pages would not send."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            return _refused(HTTPStatus.FORBIDDEN, "the Host header is not this server's address")
        if origin is not None and origin != f"http://{host}":
            return _refused(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _refused(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")
        return None

    def _body_refusal(self) -> Reply | None:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        length = self.headers.get("Content-Length", "")
        if kind != "application/json":
            return _refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is not application/json")
        if not length.isdecimal():
            return _refused(HTTPStatus.LENGTH_REQUIRED, "there is no Content-Length")
        if int(length) > MOST_BYTES:
            return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"over {MOST_BYTES:,} bytes")
        return None

    def _send(self, reply: Reply) -> None:
        body = reply.body.encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(body)))
        if reply.location:
            self.send_header("Location", reply.location)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "clozeline"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: not a line for each request."""


def json_reply(values: Any) -> Reply:
    """Plain values as JSON."""
    return Reply(json.dumps(values), JSON)


def _refused(status: int, message: str) -> Reply:
    return Reply(json.dumps({"error": message}), JSON, status)
