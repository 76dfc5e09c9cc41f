"""A page for the browsers of this machine alone, made again whenever it is loaded."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from clozeline.pipeline.common.errors import InputError

ADDRESS: Final = "127.0.0.1"


def page_server(make: Callable[[], str], *, port: int = 0) -> HTTPServer:
    """A server that answers every request with a page of `make`; port 0 is a free one.

    An InputError of `make` is shown in its place. Raises InputError for a port that is taken.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = [f"{name}:{server.server_port}" for name in (ADDRESS, "localhost")]
            if self.headers.get("Host") not in names:  # a name that was pointed here: DNS rebinding
                return self.send_error(403, "The Host header is not this server's address")
            try:
                page = make().encode()
            except InputError as error:
                return self.send_error(500, explain=str(error))
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page)
            return None

        def log_message(self, format: str, *values: Any) -> None:
            """Requests are not printed."""

    try:
        server = HTTPServer((ADDRESS, port), Page)
    except OSError as error:
        raise InputError(f"{ADDRESS}:{port}: {error.strerror}; give another --port.") from error
    return server
