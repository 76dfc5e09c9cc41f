"""`clozeline serve`: a classifier over HTTP and JSON.

    POST /classify {"texts": ["What a lovely lamp."]}
    ->  {"predictions": [{"label": "positive", "probability": 0.98,
                          "probabilities": {"negative": 0.02, "positive": 0.98}}]}
    GET /health    ->  {"status": "ok"}
    GET /metrics   ->  counters and latencies as Prometheus reads them

A classifier of pairs takes [first, second] for each text. Requests that are too large, too many or
too slow are refused: 413, 503, 504. There is no authentication and no TLS: put a public
server behind a proxy that has both.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.pipeline.common.http_server import HttpServer, json_of
from clozeline.pipeline.sources.documents import fix_unicode
from clozeline.train.finetuning.classifier import Classifier
from clozeline.train.inference.batcher import Batcher, Row
from clozeline.train.inference.onnx_classifier import OnnxClassifier
from clozeline.train.inference.serve_limits import Limits
from clozeline.train.labelled.rows import Texts

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds
PATHS = "POST /classify, GET /health or /metrics"
LOCAL = ("localhost", "127.0.0.1", "[::1]")


def classifier_server(
    classifier: Classifier | OnnxClassifier,
    *,
    host: str,
    port: int,
    limits: Limits,
    allowed_hosts: Iterable[str] = (),
) -> HttpServer:
    """A server of one classifier. Raises InputError if the address cannot be used."""
    service = _Service(classifier, limits)
    return HttpServer(
        service.app(),
        host=host,
        port=port,
        allowed_hosts=[*LOCAL, *allowed_hosts],
        is_behind_proxy=True,
        max_connections=limits.max_connections,
        max_seconds=limits.max_seconds,
        around=service.metrics.counted,
    )


class _Service:
    """The answers of each path."""

    def __init__(self, classifier: Classifier | OnnxClassifier, limits: Limits) -> None:
        self._names, self._is_pair = classifier.names, bool(classifier.text_pair)
        self._limits = limits

        def classify(rows: Sequence[Row]) -> NDArray[Any]:
            found = classifier.classify(Texts.of(rows))
            self.metrics.batches.inc()
            self.metrics.texts.inc(len(rows))
            return found

        self._batcher = Batcher(
            classify, max_batch=limits.max_batch, max_waiting=limits.max_waiting
        )
        self.metrics = _Metrics(self._batcher)

    def app(self) -> ASGIApp:
        routes = [
            Route("/classify", self._classify, methods=["POST"]),
            Route("/health", _health),
            Route("/metrics", self.metrics.answer),
        ]
        handlers: Any = {HTTPException: _refusal, Exception: _failure}
        served = Starlette(routes=routes, exception_handlers=handlers)
        served.router.redirect_slashes = False  # /classify/ gets a 404, not a redirect
        return served

    async def _classify(self, request: Request) -> Response:
        rows = self._rows(await json_of(request, max_bytes=self._limits.max_body_bytes))
        answers = self._batcher.submit(rows)
        if answers is None:
            raise HTTPException(503, "too many texts are waiting; try again")
        try:
            async with asyncio.timeout(self._limits.max_seconds):
                found = await asyncio.gather(*answers)
        except TimeoutError:
            reason = f"not done in {self._limits.max_seconds:g} s"
            raise HTTPException(504, reason) from None
        return JSONResponse({"predictions": [self._prediction(row) for row in found]})

    def _rows(self, body: Any) -> list[Row]:
        texts = body.get("texts") if isinstance(body, dict) else None
        rows = [self._row(text) for text in texts] if isinstance(texts, list) else [None]
        if None in rows:
            wanted = '["...", "..."]' if self._is_pair else '"..."'
            reason = f'the body is not JSON of the form {{"texts": [{wanted}, ...]}}'
            raise HTTPException(400, reason)
        if len(rows) > self._limits.max_texts:
            reason = f"{len(rows)} texts; at most {self._limits.max_texts} in a request"
            raise HTTPException(413, reason)
        return [row for row in rows if row is not None]

    def _row(self, text: Any) -> Row | None:
        """The texts of a row; None if it is not one."""
        parts = text if self._is_pair else [text]
        is_row = isinstance(parts, list) and len(parts) == 1 + self._is_pair
        if not is_row or not all(isinstance(part, str) for part in parts):
            return None
        return tuple(map(fix_unicode, parts))

    def _prediction(self, row: NDArray[Any]) -> dict[str, Any]:
        if not np.isfinite(row).all():
            raise HTTPException(500, "the classifier's answer is not a finite number")
        probabilities, best = row.tolist(), int(row.argmax())
        return {
            "label": self._names[best],
            "probability": probabilities[best],
            "probabilities": dict(zip(self._names, probabilities, strict=True)),
        }


class _Metrics:
    """Counts and times of this server since its start, as Prometheus reads them."""

    def __init__(self, batcher: Batcher) -> None:
        self._registry = to = CollectorRegistry()
        self._requests = Counter("clozeline_requests", "Requests.", ["status"], registry=to)
        self._seconds = Histogram(
            "clozeline_request_seconds", "Time of a request.", buckets=BUCKETS, registry=to
        )
        self.texts = Counter("clozeline_texts", "Texts that were classified.", registry=to)
        self.batches = Counter("clozeline_batches", "Batches of texts.", registry=to)
        waiting = Gauge("clozeline_waiting_texts", "Texts that wait for a batch.", registry=to)
        waiting.set_function(lambda: batcher.waiting)

    async def answer(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    def counted(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted and timed."""

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            start, status = time.perf_counter(), 500

            async def noted(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                self._requests.labels(status).inc()
                self._seconds.observe(time.perf_counter() - start)

        return run


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _refusal(request: Request, error: HTTPException) -> Response:
    reason = PATHS if error.status_code in (404, 405) else error.detail
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "an error; see the log"}, 500)  # the log gets the traceback
