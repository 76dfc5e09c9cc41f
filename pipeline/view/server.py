"""An HTTP server for this machine alone: 127.0.0.1, own pages only.

    GET http://127.0.0.1:43521/examples     ->  200
    the same with Host: evil.example        ->  403: a name that was pointed here (DNS rebinding)
    the same from a page of another site    ->  403: Origin, Sec-Fetch-Site
    POST without Content-Type: application/json  ->  415: no form of another site can send that

Text reaches the browser escaped, and the policy of every answer allows only this server's scripts.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.http_server import HttpServer, json_of
from clozeline.pipeline.view.replies import Reply, Route, json_reply

ADDRESS: Final = "127.0.0.1"
MOST_BYTES = 100_000  # of a request's body
MOST_CONNECTIONS = 256
TIMEOUT = 300  # seconds until an idle connection is closed; a page may take twice as long
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


def local_server(
    routes: Mapping[str, Route], on_error: Callable[[int, str], Reply], *, port: int = 0
) -> HttpServer:
    """Answers the routes, by method and path ("GET /examples").

    `port` 0 takes a free one. `on_error` makes the page for an InputError or an unknown path.
    Raises InputError if the port cannot be used.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        status, reason = 400, str(error)
        if isinstance(error, HTTPException):
            status, reason = error.status_code, error.detail
        if request.method != "GET":
            return _response(json_reply({"error": reason}, status))
        return _response(on_error(status, "There is no such page." if status == 404 else reason))

    paths = []
    for name, route in routes.items():
        method, path = name.split(" ")
        paths.append(Path(path, _endpoint(route), methods=[method]))
    handlers: Any = {InputError: refuse, HTTPException: refuse, Exception: _fail}
    return HttpServer(
        Starlette(routes=paths, exception_handlers=handlers),
        host=ADDRESS,
        port=port,
        allowed_hosts=["localhost"],
        is_behind_proxy=False,
        max_connections=MOST_CONNECTIONS,
        max_seconds=TIMEOUT,
        headers=HEADERS,
    )


def _endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
    """A route that runs in a thread."""

    async def answer(request: Request) -> Response:
        if request.method == "POST":
            values = await json_of(request, max_bytes=MOST_BYTES)
        else:
            values = dict(parse_qsl(request.url.query))
        if not isinstance(values, dict):
            raise HTTPException(400, "the body is not a JSON object")
        return _response(await run_in_threadpool(route, values))

    return answer


def _response(reply: Reply) -> Response:
    location = {"Location": reply.location} if reply.location else None
    return Response(reply.body, reply.status, location, reply.kind)


async def _fail(request: Request, error: Exception) -> Response:
    """The terminal gets the traceback, and the server stays up."""
    return _response(json_reply({"error": "an error; see the terminal"}, 500))
