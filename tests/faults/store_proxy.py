"""A proxy in front of an S3 server, which counts what is fetched and injects faults on request.

with running_proxy(upstream_port) as proxy:
    proxy.fault = Fault(unavailable=0.05)       # one request of twenty: 503
    ... use http://127.0.0.1:{proxy.port} ...
    proxy.fetched["bucket/text.parquet"]        # bytes
"""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

SECONDS_TO_ANSWER = 60.0
ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>made by a test</Message></Error>"
#: Headers of one connection, which are not passed on.
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to requests; shares are probabilities."""

    unavailable: float = 0.0  #: answered 503 SlowDown
    reset: float = 0.0  #: the connection is reset, before the answer or in the middle of it
    seconds: float = 0.0  #: delay of every answer
    down: bool = False  #: no connection is served
    forbidden: bool = False  #: every request is answered 403


class Proxy:
    """The fault, and what was counted."""

    def __init__(self, upstream: int, *, seed: int = 0) -> None:
        self.upstream, self.random = upstream, random.Random(seed)
        self.fault, self.port = Fault(), 0
        self.requests: Counter[str] = Counter()  #: by what became of them
        self.fetched: Counter[str] = Counter()  #: bytes, by bucket and key
        self.written: list[str] = []  #: keys, in order
        self.lock = threading.Lock()

    def clear(self) -> None:
        with self.lock:
            self.requests, self.fetched, self.written = Counter(), Counter(), []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_one_request(self) -> None:
        """A request, or the end of the connection where the server is down."""
        if self.proxy.fault.down:
            self.proxy.requests["refused"] += 1
            self._reset()
            return
        super().handle_one_request()

    def pass_on(self) -> None:
        """Forward the request, or let it fail."""
        body, fault, proxy = self._body(), self.proxy.fault, self.proxy
        time.sleep(fault.seconds)
        with proxy.lock:
            proxy.requests["all"] += 1
            drawn, is_early = proxy.random.random(), proxy.random.random() < 0.5
        if fault.down or (drawn < fault.reset and is_early):
            proxy.requests["reset"] += 1
            self._reset()
        elif fault.forbidden:
            self._answer(403, "AccessDenied")
        elif drawn < fault.unavailable:
            self._answer(503, "SlowDown")
        else:
            self._forward(body, is_cut=drawn < fault.reset)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _forward(self, body: bytes, *, is_cut: bool) -> None:
        server = http.client.HTTPConnection(
            "127.0.0.1", self.proxy.upstream, timeout=SECONDS_TO_ANSWER
        )
        try:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP:
                    server.putheader(name, value)
            server.putheader("Content-Length", str(len(body)))
            server.endheaders(body)
            answer = server.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):  # the server itself is gone
            self.proxy.requests["refused"] += 1
            self._reset()
            return
        finally:
            server.close()
        self._send(answer.status, answer.getheaders(), content, is_cut=is_cut)

    def _send(self, status: int, headers: Any, content: bytes, *, is_cut: bool) -> None:
        self.send_response_only(status)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        no_body = self.command == "HEAD" or status in (204, 304)
        self.send_header("Content-Length", (length or "0") if no_body else str(len(content)))
        self.end_headers()
        sent = content[: len(content) // 2] if is_cut else content
        key = unquote(urlsplit(self.path).path).strip("/")
        with self.proxy.lock:
            if self.command == "GET":
                self.proxy.fetched[key] += len(sent)
            elif self.command == "PUT":
                self.proxy.written.append(key)
        self.wfile.write(sent)
        if is_cut:
            self.proxy.requests["reset"] += 1
            self._reset()

    def _answer(self, status: int, code: str) -> None:
        self.proxy.requests[str(status)] += 1
        headers = [("Content-Type", "application/xml")]
        content = b"" if self.command == "HEAD" else ERROR.format(code).encode()
        self._send(status, headers, content, is_cut=False)

    def _reset(self) -> None:
        """The other side reads "connection reset by peer"."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


class Server(ThreadingHTTPServer):
    """A connection that the client gives up is no error."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Nothing: clients are killed here."""


@contextmanager
def running_proxy(upstream: int, *, seed: int = 0) -> Iterator[Proxy]:
    proxy = Proxy(upstream, seed=seed)
    handler = type("ProxyHandler", (Handler,), {"proxy": proxy})
    with Server(("127.0.0.1", 0), handler) as server:
        proxy.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield proxy
        server.shutdown()
