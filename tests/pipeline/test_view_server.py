"""The server of `clozeline view` answers its own pages on this machine, and nobody else."""

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.view.server import MOST_BYTES, local_server
from tests.support.http_clients import post, request, running


def fails(_):
    raise ZeroDivisionError


def refuses(values):
    raise InputError(f"no {values.get('what')}")


@pytest.fixture(scope="module")
def server():
    routes = {
        "GET /page": ("text/html", lambda values: f"page {sorted(values.items())}"),
        "POST /double": ("application/json", lambda values: {"twice": 2 * values["number"]}),
        "GET /bad": ("text/html", refuses),
        "POST /bad": ("application/json", refuses),
        "GET /broken": ("text/html", fails),
    }
    with running(local_server(routes, home="/page", error_page="sorry: {}".format)) as server:
        yield server


def test_pages_and_actions_are_answered(server):
    assert server.url == f"http://127.0.0.1:{server.port}"
    found = request(server, "/page?a=1&b=%3Cb%3E&c=")
    assert (found.status, found.text) == (200, "page [('a', '1'), ('b', '<b>')]")
    assert post(server, "/double", {"number": 4}).json == {"twice": 8}
    home = request(server, "/")
    assert (home.status, home.headers["Location"]) == (302, "/page")
    localhost = {"Host": f"localhost:{server.port}"}
    assert request(server, "/page", headers=localhost).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"}, {"Host": "evil.example:{port}"}, {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"}, {"Host": ""}, {"Origin": "http://evil.example"},
        {"Origin": "null"}, {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://localhost:{port}"},  # of another name than the Host header's
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_requests_of_other_sites_and_for_other_hosts_are_refused(server, headers):
    filled = {name: value.format(port=server.port) for name, value in headers.items()}
    assert request(server, "/page", headers=filled).status == 403
    sent = {**filled, "Content-Type": "application/json"}
    found = request(server, "/double", method="POST", body='{"number": 1}', headers=sent)
    assert found.status == 403
    assert "twice" not in found.text


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_own_pages_and_typed_addresses_are_answered(server, site):
    own = {"Sec-Fetch-Site": site, "Origin": server.url}
    assert request(server, "/page", headers=own).status == 200


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", "{}", 415),
        ("application/x-www-form-urlencoded", "a=1", 415),
        ("application/json", "[1]", 400),
        ("application/json", "{", 400),
        ("application/json", "[" * 50_000, 400),
        ("application/json", " " * (MOST_BYTES + 1), 413),
    ],
)
def test_only_small_json_objects_are_taken(server, kind, body, status):
    headers = {"Content-Type": kind}
    found = request(server, "/double", method="POST", body=body, headers=headers)
    assert found.status == status


def test_every_answer_forbids_foreign_scripts_and_frames(server):
    for path in ("/page", "/nothing", "/bad"):
        policy = request(server, path).headers["Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'"
    headers = request(server, "/page").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_mistakes_are_answered_and_the_server_stays_up(server, caplog):
    assert request(server, "/nothing").text == "sorry: There is no such page."
    assert request(server, "//[?%zz").status == 404
    assert request(server, "/bad?what=row").text == "sorry: no row"
    assert post(server, "/bad", {"what": "text"}).json == {"error": "no text"}
    assert request(server, "/page", method="PUT").status == 405
    assert not caplog.text
    assert request(server, "/broken").status == 500
    assert request(server, "/page").status == 200
    assert "ZeroDivisionError" in caplog.text


def test_a_taken_port_is_one_line(server):
    with pytest.raises(InputError, match=rf"127.0.0.1:{server.port} cannot be used \(.*--port"):
        local_server({}, home="/page", error_page=str, port=server.port)
