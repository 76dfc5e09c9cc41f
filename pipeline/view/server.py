"""An HTTP server for this machine alone: 127.0.0.1, own pages only.

    GET http://127.0.0.1:43521/examples          ->  200
    the same with another Host, Origin ...       ->  403, by `http_server.py`
    POST without Content-Type: application/json  ->  415: no form of another site can send that

Text reaches the browser escaped, and the policy of every answer allows only this server's scripts.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.http_server import HttpServer, json_of

Make = Callable[[dict[str, Any]], Any]  # from a query, or from the JSON that was posted

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
    routes: Mapping[str, tuple[str, Make]],
    *,
    home: str,
    error_page: Callable[[str], str],
    port: int = 0,
) -> HttpServer:
    """Answers the routes, by method and path: "GET /examples" -> media type, values -> answer.

    `port` 0 takes a free one. `error_page` makes the page for an InputError or an unknown path.
    Raises InputError if the port cannot be used.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        status, reason = 400, str(error)
        if isinstance(error, HTTPException):
            status, reason = error.status_code, error.detail
        if request.method != "GET":
            return _answer({"error": reason}, "application/json", status)
        page = error_page("There is no such page." if status == 404 else reason)
        return _answer(page, "text/html", status)

    paths = [Route("/", RedirectResponse(home, 302), methods=["GET"])]
    for name, (kind, make) in routes.items():
        method, path = name.split(" ")
        paths.append(Route(path, _endpoint(kind, make), methods=[method]))
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


def _endpoint(kind: str, make: Make) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.method == "POST":
            values = await json_of(request, max_bytes=MOST_BYTES)
        else:
            values = dict(parse_qsl(request.url.query))
        if not isinstance(values, dict):
            raise HTTPException(400, "the body is not a JSON object")
        return await run_in_threadpool(lambda: _answer(make(values), kind))

    return answer


def _answer(found: Any, kind: str, status: int = 200) -> Response:
    body = json.dumps(found) if kind == "application/json" else found
    return Response(body, status, media_type=f"{kind}; charset=utf-8")


async def _fail(request: Request, error: Exception) -> Response:
    """The terminal gets the traceback, and the server stays up."""
    return _answer({"error": "an error; see the terminal"}, "application/json", 500)
