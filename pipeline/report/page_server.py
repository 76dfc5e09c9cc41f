"""A page for the browsers of this machine alone, made again whenever it is loaded.

GET http://127.0.0.1:43521/  ->  200, the page as its folders are now
the same with another Host   ->  403: a name that was pointed here (DNS rebinding)
"""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from clozeline.pipeline.common.errors import InputError

ADDRESS: Final = "127.0.0.1"


def page_server(make: Callable[[], str], *, port: int = 0) -> ThreadingHTTPServer:
    """A server that answers every request with a page of `make`; port 0 is a free one.

    An InputError of `make` is shown in place of the page. Raises InputError if the port cannot be
    used.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts = [f"{name}:{server.server_port}" for name in (ADDRESS, "localhost")]
            if self.headers.get("Host") not in hosts:
                return self.send_error(403, "The Host header is not this server's address")
            try:
                page = make().encode()
            except InputError as error:
                return self.send_error(500, explain=str(error))
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(page)
            return None

        def log_message(self, format: str, *values: Any) -> None:
            """Requests are not printed."""

    try:
        server = ThreadingHTTPServer((ADDRESS, port), Page)
    except OSError as error:
        raise InputError(
            f"{ADDRESS}:{port} cannot be used ({error.strerror}); give another --port."
        ) from error
    return server
