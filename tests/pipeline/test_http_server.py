"""The limits of the HTTP server: time, connections, and what may be asked by whom."""

import re
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.http_server import HttpServer, _OwnSite, json_of
from tests.support.http_clients import ask, ask_once, connect, raw, request, running
from tests.support.small_jobs import ROOT


async def health(request):
    return PlainTextResponse("ok")


async def echo(request):
    return PlainTextResponse(str(await json_of(request, max_bytes=100)))


async def big(request):
    return PlainTextResponse("a" * 20_000_000)


APP = Starlette(
    routes=[Route("/health", health), Route("/big", big), Route("/echo", echo, methods=["POST"])]
)


def make(*, host="127.0.0.1", port=0, allowed_hosts=("proxy.example",), seconds=60.0):
    return HttpServer(
        APP, host=host, port=port, allowed_hosts=allowed_hosts, is_behind_proxy=True,
        max_connections=1000, max_seconds=seconds,
    )  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with running(make()) as server:
        yield server


# --- time and number


HEAD = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /echo HTTP/1.1\r\n", HEAD + b"Content-Length: 90\r\n\r\n",
     HEAD + b"Content-Length: 900\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
    ids=["silent", "head", "body", "body of a refused request", "after an answer"],
)  # fmt: skip
def test_a_request_that_does_not_arrive_in_time_is_closed(sent):
    with running(make(seconds=0.2)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(sent)
            client.settimeout(0.02)
            is_open, count = True, 0
            while is_open:
                count += 1
                try:
                    if sent:
                        client.sendall(b"a")
                    is_open = bool(client.recv(1000))
                except TimeoutError:
                    continue
                except ConnectionError:
                    is_open = False
        assert count < 100


def test_an_answer_that_is_not_read_does_not_keep_the_server_from_stopping():
    with socket.socket() as client, running(make(seconds=0.2)) as server:
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(4) == b"HTTP"


def test_no_answer_waits_for_an_acknowledgement_of_its_head():
    with running(make()) as server, closing(connect(server.url)) as connection:
        assert ask(connection, "/health").status == 200
        (open_one,) = server.server_state.connections
        accepted = open_one.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


SERVER = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from tests.pipeline.test_http_server import make
make().run_until_signal(lambda url: print(url, flush=True))
"""


def test_200_idle_sockets_do_not_stop_a_server_that_may_open_128_files():
    """First they send nothing, then a part of a request, a byte at a time."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", SERVER]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, text=True, **pipes))
        url = process.stdout.readline().strip()
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        clients = [socket.create_connection(address, timeout=60) for _ in range(200)]
        for client in clients:
            stack.enter_context(client)
        assert ask_once(url, "/health").status == 200
        for byte in b"POST /echo HTTP/1.1\r\n":
            for client in clients:
                with suppress(ConnectionError):  # closed to make room
                    client.sendall(bytes([byte]))
            assert ask_once(url, "/health").status == 200
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""  # no "too many open files"


# --- requests that two servers may read differently


GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SMUGGLED = GET.replace(b"/health", b"/smuggled") + b"\r\n"
CLOSE = b"Connection: close\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(SMUGGLED)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        # a body is not a request, also where nothing reads it
        (GET + LENGTH + b"\r\n" + SMUGGLED + GET + CLOSE + b"\r\n", [200, 200]),
        (HEAD + LENGTH + b"\r\n" + SMUGGLED + GET + CLOSE + b"\r\n", [200, 200]),
        (HEAD.replace(b"json", b"text") + LENGTH + b"\r\n" + SMUGGLED + GET + CLOSE + b"\r\n",
         [415, 200]),
        # two lengths; none of the rest is read
        (HEAD + LENGTH + b"Content-Length: 2\r\n\r\n{}" + SMUGGLED, [400]),
        (HEAD + b"Content-Length: 2, 3\r\n\r\n{}" + SMUGGLED, [400]),
        (HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [411]),
        (GET + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, [411]),
        # lengths that servers read differently
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [411]),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + SMUGGLED, [400]),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\n" + SMUGGLED, [400]),
        (HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + SMUGGLED, [400]),
        (HEAD + b"Content-Length: +2\r\n\r\n{}" + SMUGGLED, [400]),
        (HEAD + b"Content-Length: 0x2\r\n\r\n{}" + SMUGGLED, [400]),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", [400]),
        (HEAD + CLOSE + b"\r\n", [411]),
        # whose request is it?
        (GET + b"Host: evil.example\r\n\r\n", [400]),
        (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    ],
)  # fmt: skip
def test_no_request_hides_in_another(server, sent, statuses, caplog):
    found = raw(server, sent)
    assert b"smuggled" not in found
    assert [int(n) for n in re.findall(rb"HTTP/1.1 (\d+) ", found)] == statuses
    assert request(server, "/health").status == 200
    assert not caplog.text


# --- who may ask


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "127.0.0.1:9000"}, 200),  # the port of a proxy or a container
        ({"Host": "Proxy.Example"}, 200),
        ({"Host": "proxy.example:443"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil-proxy.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "proxy.example", "Origin": "https://proxy.example"}, 200),
        ({"Host": "proxy.example", "Origin": "https://evil.example"}, 403),
        ({"Host": "proxy.example", "Origin": "https://proxy.example.evil.example"}, 403),
    ],
)
def test_other_names_and_pages_of_other_sites_are_refused(server, headers, status):
    assert request(server, "/health", headers=headers).status == status


def test_browsers_leave_port_80_out_of_the_address():
    site = _OwnSite(Starlette(), hosts=(), port=80)
    for host, is_own in {"127.0.0.1": True, "127.0.0.1:80": True, "127.0.0.1:8000": False}.items():
        assert (site._refusal(Headers({"host": host}), "127.0.0.1") is None) == is_own


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_address_of_ipv6_is_served():
    with running(make(host="::1")) as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert ask_once(server.url, "/health").status == 200


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("", "the host is empty; 0.0.0.0 is every network of this machine"),
        ("999.1.1.1", r"999.1.1.1:0 cannot be used \(.*\); give another --host\."),
        ("192.0.2.1", r"192.0.2.1:0 cannot be used \(.*\); give another --host\."),
        ("a" * 70 + ".example", r"cannot be used \(.*\); give another --host\."),
    ],
)
def test_a_host_that_cannot_be_used_is_one_line(host, message):
    with pytest.raises(InputError, match=message):
        make(host=host)
