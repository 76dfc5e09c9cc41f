"""The proxy of the fault trials counts what passes and makes the faults that it is told to make."""

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.faults.store_proxy import Fault, running_proxy

CONTENT = b"0123456789" * 1000


class Store(BaseHTTPRequestHandler):
    """Answers with CONTENT, and with the length of what it is given."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT)

    def do_PUT(self):
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(size).encode())

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def proxy():
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        with running_proxy(store.server_address[1]) as proxy:
            yield proxy
        store.shutdown()


def ask(proxy, key="bucket/a%20b", data=None):
    url = f"http://127.0.0.1:{proxy.port}/{key}?version=1"
    request = urllib.request.Request(url, data=data, method="PUT" if data else "GET")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def test_what_passes_is_counted(proxy):
    assert ask(proxy) == ask(proxy) == CONTENT
    assert ask(proxy, "bucket/new", b"12345") == b"5"
    assert proxy.fetched == {"bucket/a b": 2 * len(CONTENT)}
    assert proxy.written == ["bucket/new"]
    assert proxy.requests == {"all": 3}
    proxy.clear()
    assert [*proxy.requests, *proxy.fetched, *proxy.written] == []


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault(unavailable=1.0), 503), (Fault(forbidden=True), 403)]
)
def test_an_answer_can_be_an_error(proxy, fault, code):
    proxy.fault = fault
    with pytest.raises(urllib.error.HTTPError) as failed:
        ask(proxy)
    failed.value.close()
    assert failed.value.code == code
    assert proxy.requests == {"all": 1, str(code): 1}


@pytest.mark.parametrize("fault", [Fault(reset=1.0), Fault(down=True)])
def test_a_connection_can_be_reset(proxy, fault):
    proxy.fault = fault
    for _ in range(8):  # before the answer, and in the middle of it
        with pytest.raises(OSError, match=r"reset|closed"):
            ask(proxy)
    proxy.fault = Fault()
    assert ask(proxy) == CONTENT
