"""`clozeline serve`: a classifier over HTTP and JSON.

    POST /classify {"texts": ["What a lovely lamp."]}
    ->  {"predictions": [{"label": "positive", "probability": 0.98,
                          "probabilities": {"negative": 0.02, "positive": 0.98}}]}
    GET /health    ->  {"status": "ok"}; 503 while it stops
    GET /metrics   ->  counters and latencies as Prometheus reads them

A classifier of pairs takes [first, second] for each text. Requests that are too large, too many or
too slow are refused: 413, 503, 504. There is no authentication and no TLS: put a public
server behind a proxy that has both.

The server is the standard library's. HTTP, JSON and queueing take 0.3 to 0.6 ms of the 7 to
15 ms of processor time of a request to a bert-mini (`tests/benchmarks/serve_speed.py`, two threads
of an AMD EPYC): a faster library would be one more dependency for a tenth at most.
"""

import io
import json
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.documents import fix_unicode
from clozeline.train.finetuning.classifier import Classifier
from clozeline.train.inference.batcher import Batcher, Row
from clozeline.train.inference.onnx_classifier import OnnxClassifier
from clozeline.train.inference.serve_limits import Limits
from clozeline.train.labelled.rows import Texts

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds
TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"


class Refusal(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ClassifierServer(ThreadingHTTPServer):
    """Serves one classifier until `stop`; then the requests that have begun are answered.

    Raises InputError if the address cannot be used.
    """

    daemon_threads = False  # closing waits for requests
    request_queue_size = 256

    def __init__(
        self, classifier: Classifier | OnnxClassifier, *, host: str, port: int, limits: Limits
    ) -> None:
        self.names, self.is_pair = classifier.names, bool(classifier.text_pair)
        self.limits, self.is_stopping = limits, False
        self.connections: set[_Handler] = set()
        self._lock = threading.Lock()
        self._statuses: Counter[int] = Counter()
        self._latencies: Counter[float] = Counter()  # requests that took at most so long
        self._seconds = 0.0
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(f"{host}:{port} cannot be used ({error.strerror}).") from error

        def classify(rows: Sequence[Row]) -> NDArray[Any]:
            first, *second = (list(column) for column in zip(*rows, strict=True))
            return classifier.classify(Texts(first, second[0] if second else None))

        self.batcher = Batcher(classify, max_batch=limits.max_batch, max_waiting=limits.max_waiting)

    @property
    def url(self) -> str:
        """The address that it listens on."""
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def run(self) -> None:
        """Serve until `stop` is called; returns when everything is answered."""
        self.serve_forever(poll_interval=0.1)
        for connection in list(self.connections):
            connection.close_if_idle()
        self.server_close()  # waits for the threads of requests
        self.batcher.close()

    def stop(self) -> None:
        """Take no more requests. Called from a signal handler or another thread."""
        self.is_stopping = True
        threading.Thread(target=self.shutdown).start()  # which waits for `run`

    def classify(self, body: bytes) -> dict[str, Any]:
        """The answer to POST /classify. Raises Refusal."""
        rows = self._rows(body)
        answers = self.batcher.submit(rows)
        if answers is None:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many texts are waiting; try again")
        done, late = wait_for(answers, timeout=self.limits.max_seconds)
        if late:
            for answer in late:
                answer.cancel()
            raise Refusal(HTTPStatus.GATEWAY_TIMEOUT, f"not done in {self.limits.max_seconds:g} s")
        assert len(done) == len(answers)
        return {"predictions": [self._prediction(answer) for answer in answers]}

    def _rows(self, body: bytes) -> list[Row]:
        wanted = '{"texts": [["...", "..."], ...]}' if self.is_pair else '{"texts": ["...", ...]}'
        try:
            texts = json.loads(body)["texts"]
            rows = [tuple(text) if isinstance(text, list) else (text,) for text in texts]
        except (ValueError, LookupError, TypeError, RecursionError):
            texts, rows = None, []
        is_right = isinstance(texts, list) and all(
            isinstance(text, list) == self.is_pair
            and len(row) == 1 + self.is_pair
            and all(isinstance(part, str) for part in row)
            for text, row in zip(texts, rows, strict=True)
        )
        if not is_right:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is not JSON of the form {wanted}")
        if len(rows) > self.limits.max_texts:
            reason = f"{len(rows)} texts; at most {self.limits.max_texts} in a request"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return [tuple(fix_unicode(part) for part in row) for row in rows]

    def _prediction(self, answer: Future[NDArray[Any]]) -> dict[str, Any]:
        probabilities = answer.result().tolist()
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {
            "label": self.names[best],
            "probability": probabilities[best],
            "probabilities": dict(zip(self.names, probabilities, strict=True)),
        }

    def count(self, status: int, seconds: float) -> None:
        """Add a request to the metrics."""
        with self._lock:
            self._statuses[status] += 1
            self._seconds += seconds
            self._latencies.update(bucket for bucket in BUCKETS if seconds <= bucket)

    def metrics(self) -> str:
        """All numbers in Prometheus' text format."""
        with self._lock:
            statuses, latencies, seconds = dict(self._statuses), self._latencies, self._seconds
            counts = [f'le="{bucket}"}} {latencies[bucket]}' for bucket in BUCKETS]
        total, name = sum(statuses.values()), "clozeline_request_seconds"
        return "\n".join(
            [
                "# TYPE clozeline_requests_total counter",
                *(f'clozeline_requests_total{{status="{s}"}} {n}' for s, n in statuses.items()),
                f"# TYPE {name} histogram",
                *(f"{name}_bucket{{{count}" for count in [*counts, f'le="+Inf"}} {total}']),
                f"{name}_sum {seconds:.6f}",
                f"{name}_count {total}",
                "# TYPE clozeline_texts_total counter",
                f"clozeline_texts_total {self.batcher.texts}",
                "# TYPE clozeline_batches_total counter",
                f"clozeline_batches_total {self.batcher.batches}",
                "# TYPE clozeline_waiting_texts gauge",
                f"clozeline_waiting_texts {self.batcher.waiting}",
                "",
            ]
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def serve_until_stopped(
    classifier: Classifier | OnnxClassifier,
    *,
    host: str,
    port: int,
    limits: Limits,
    started: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT; `started` gets the address when requests are taken."""
    server = ClassifierServer(classifier, host=host, port=port, limits=limits)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    started(server.url)
    server.run()


class _TimedReader(io.RawIOBase):
    """Reads a connection; a request must arrive within `seconds` of its first bytes."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._deadline: float | None = None  # while a request arrives

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError."""
        end = self._deadline or time.monotonic() + self._seconds
        self._connection.settimeout(max(end - time.monotonic(), 1e-6))
        count = self._connection.recv_into(buffer)
        self._deadline = end if self._deadline else time.monotonic() + self._seconds
        return count

    def end_of_request(self) -> None:
        """What is read next belongs to another request; the answer gets its own time limit."""
        self._deadline = None
        self._connection.settimeout(self._seconds)


class _Handler(BaseHTTPRequestHandler):
    server: ClassifierServer
    protocol_version = "HTTP/1.1"  # connections stay open
    disable_nagle_algorithm = True  # or a small answer waits for an acknowledgement

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = _TimedReader(self.connection, self.server.limits.max_seconds)
        self.rfile = io.BufferedReader(self._reader)
        self.is_idle = True
        self.server.connections.add(self)

    def finish(self) -> None:
        self.server.connections.discard(self)
        super().finish()

    def parse_request(self) -> bool:
        self.is_idle, self._start = False, time.perf_counter()
        return super().parse_request()

    def close_if_idle(self) -> None:
        if self.is_idle:
            self.connection.shutdown(socket.SHUT_RD)  # its thread reads the end

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(HTTPStatus.OK, self.server.metrics(), TEXT)
        elif self.path == "/health" and self.server.is_stopping:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, json.dumps({"status": "stopping"}))
        elif self.path == "/health":
            self._send(HTTPStatus.OK, json.dumps({"status": "ok"}))
        else:
            self._refuse(Refusal(HTTPStatus.NOT_FOUND, "POST /classify, GET /health or /metrics"))

    def do_POST(self) -> None:
        try:
            if self.path != "/classify":
                raise Refusal(HTTPStatus.NOT_FOUND, "POST /classify, GET /health or /metrics")
            answer = self.server.classify(self._body())
            self._send(HTTPStatus.OK, json.dumps(answer))
        except Refusal as refusal:
            self._refuse(refusal)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:  # the log has the traceback, and the server stays up
            traceback.print_exc()
            self._refuse(Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "an error; see the log"))

    def _body(self) -> bytes:
        if self.headers.get("Content-Type", "").partition(";")[0].strip() != JSON:
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type is not {JSON}")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "there is no Content-Length")
        if len(length) > 18 or int(length) > self.server.limits.max_body_bytes:
            reason = f"{length} bytes; at most {self.server.limits.max_body_bytes}"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return self.rfile.read(int(length))

    def _refuse(self, refusal: Refusal) -> None:
        self.close_connection = True  # its body may not have been read
        self._send(refusal.status, json.dumps({"error": str(refusal)}))

    def _send(self, status: HTTPStatus, text: str, kind: str = JSON) -> None:
        body = text.encode()
        self._reader.end_of_request()
        self.server.count(status, time.perf_counter() - self._start)
        self.close_connection |= self.server.is_stopping
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.is_idle = True

    def version_string(self) -> str:
        return "clozeline"

    def log_message(self, format: str, *args: Any) -> None:
        """Print no line per request; /metrics has their number."""
