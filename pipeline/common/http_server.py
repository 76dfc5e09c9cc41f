"""The HTTP server of `serve` and `view`: uvicorn, with the limits that it leaves to a proxy.

    no whole request `max_seconds` after the connection, or the last answer  ->  closed
    one connection more than `max_connections`  ->  that which waits longest for a request is closed
    Host: evil.example          ->  403: a name that was pointed here (DNS rebinding)
    Origin: http://evil.example ->  403: a page of another site
    Transfer-Encoding: chunked  ->  411, closed: a proxy may read another length

Two different lengths, or one that is not a number: 400, from h11, which parses for uvicorn.
"""

import asyncio
import errno
import json
import re
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from clozeline.pipeline.common.errors import InputError

PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)  # the host is right
QUEUE = 256  # connections that the system holds until they are accepted
ACCEPTED = 8  # of them at a time, so that those over the limit are closed in between


class _Connection(H11Protocol):
    """Closes itself when a request or the client's reading of its answer takes too long."""

    max_connections: int
    max_seconds: float
    _timer: asyncio.TimerHandle

    @property
    def is_waiting(self) -> bool:
        """No request has arrived as a whole."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Or the body of an answer waits 40 ms until its head is acknowledged. asyncio sets this
        # only where the listening socket names its protocol.
        accepted = transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = self.loop.call_later(self.max_seconds, self._close)
        if len(self.connections) > self.max_connections:
            ours = (other for other in self.connections if isinstance(other, _Connection))
            waiting = [other for other in ours if other.is_waiting]  # itself among them
            min(waiting, key=lambda other: other._timer.when())._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_waiting:
            self._close_after(2 * self.max_seconds)  # to make the answer, and to send it

    def on_response_complete(self) -> None:
        self._close_after(self.max_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()  # the rest of a request that is answered already
            return
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True  # or the application's answer would be a second one

    def _close_after(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        self.connections.discard(self)  # its place is free at once
        self.transport.abort()


class HttpServer(uvicorn.Server):
    """Serves an application until `stop`; then the requests that have begun are answered.

    Raises InputError if the address cannot be used.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        allowed_hosts: Iterable[str],
        is_behind_proxy: bool,
        max_connections: int,
        max_seconds: float,
        headers: Mapping[str, str] | None = None,  # of every answer
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,  # sees what is refused here, too
    ) -> None:
        self._socket = _listen(host, port)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://{_in_url(host)}:{self.port}"
        own = _OwnSite(app, [*allowed_hosts, _in_url(host)], None if is_behind_proxy else self.port)
        most = min(max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

        class Connection(_Connection):
            pass

        Connection.max_connections, Connection.max_seconds = most, max_seconds
        super().__init__(
            uvicorn.Config(
                around(own), http=Connection, ws="none", loop="asyncio", lifespan="off",
                backlog=ACCEPTED, log_config=None, log_level="error", access_log=False,
                server_header=False, proxy_headers=False,
                timeout_keep_alive=1 << 20,  # `_Connection` has its own
                headers=list((headers or {}).items()),
            )
        )  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._socket.listen(QUEUE)  # asyncio's `backlog` is both the queue and what it accepts

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`; returns when everything is answered."""
        super().run(sockets or [self._socket])

    def run_until_signal(self, started: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; `started` gets the address."""
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn repeats them for these handlers
            signal.signal(number, self.handle_exit)
        started(self.url)
        self.run()

    def stop(self) -> None:
        """Take no more requests; may be called from another thread."""
        self.should_exit = True


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    if not host:
        raise InputError("the host is empty; 0.0.0.0 is every network of this machine.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=QUEUE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "not a name")
        option = "--port" if getattr(error, "errno", None) in PORT_ERRORS else "--host"
        problem = f"{_in_url(host)}:{port} cannot be used ({reason})"
        raise InputError(f"{problem}; give another {option}.") from error


class _OwnSite:
    """An application, for requests to its own names that come from no other site's page.

    Its names are `hosts` and the address that was connected to. Behind a proxy (`port` None) the
    port may be another one, and the scheme https.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], port: int | None) -> None:
        self._app, self._hosts, self._port = app, {host.lower() for host in hosts}, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = _in_url(scope["server"][0])
        await (self._refusal(Headers(scope=scope), address) or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers, address: str) -> JSONResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = re.sub(r":\d*$", "", host).lower()
        port = host[len(name) :].removeprefix(":") or "80"
        is_port = self._port is None or port == str(self._port)
        if name not in {*self._hosts, address} or not is_port:
            reason = f"the Host header {host[:100]!r} is not this server's address"
            return JSONResponse({"error": reason}, 403)
        schemes = ("http", "https") if self._port is None else ("http",)
        is_own = origin is None or origin in [f"{scheme}://{host}" for scheme in schemes]
        if not is_own or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return JSONResponse({"error": "the request comes from a page of another site"}, 403)
        if "transfer-encoding" in headers:
            error = {"error": "Transfer-Encoding is not read; send a Content-Length"}
            return JSONResponse(error, 411, {"Connection": "close"})
        return None


async def json_of(request: Request, *, max_bytes: int) -> Any:
    """The body of a request; None if it is not JSON. Raises HTTPException."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "Content-Type is not application/json")
    length = request.headers.get("content-length")
    if length is None:
        raise HTTPException(411, "there is no Content-Length")
    if int(length) > max_bytes:
        raise HTTPException(413, f"{length} bytes; at most {max_bytes}")
    try:
        return json.loads(await request.body())
    except ClientDisconnect as error:
        raise HTTPException(400, "the client left") from error
    except (ValueError, RecursionError):
        return None
