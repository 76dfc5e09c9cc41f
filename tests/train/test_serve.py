"""`clozeline serve`, over real HTTP."""

import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from http.client import HTTPException

import numpy as np
import pytest

from clozeline.train.cli import HOST
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.inference.serve import classifier_server
from clozeline.train.inference.serve_limits import Limits
from clozeline.train.labelled.rows import Texts
from tests.support.command import output_of
from tests.support.http_clients import ask, ask_once, connect, latencies, raw, running
from tests.support.small_classifier import write_small_classifier
from tests.support.small_jobs import ROOT

LIMITS = Limits(max_texts=4, max_body_bytes=2000, max_batch=8)


def serving(classifier, limits=LIMITS):
    return running(classifier_server(classifier, host="127.0.0.1", port=0, limits=limits))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_classifier(tmp_path_factory.mktemp("classifier") / "c")


@pytest.fixture(scope="module")
def server(folder):
    with serving(load_classifier(folder)) as server:
        yield server


def test_answers_are_those_of_the_classifier_in_order(server, folder):
    texts = ["the cat", "a dog ran", "\ud83d"]
    answer = ask_once(server.url, "/classify", {"texts": texts})
    assert answer.status == 200
    expected = load_classifier(folder).classify(Texts(["the cat", "a dog ran", "\ufffd"]))
    found = answer.json["predictions"]
    names = load_classifier(folder).names
    for row, one in zip(expected, found, strict=True):
        assert [one["probabilities"][name] for name in names] == pytest.approx(row.tolist(), 1e-5)
        assert one["label"] == names[int(row.argmax())]
        assert one["probability"] == max(one["probabilities"].values())
    assert ask_once(server.url, "/classify", {"texts": []}).json == {"predictions": []}


def metrics(server):
    lines = ask_once(server.url, "/metrics").text.splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(number) for name, number in samples}


def test_many_clients_are_answered_over_connections_that_stay_open(server):
    before = metrics(server)["clozeline_texts_total"]
    assert len(latencies(server.url, ["the cat", "a dog"], clients=8, requests=40)) == 40
    assert metrics(server)["clozeline_texts_total"] == before + 40


FORM = 'the body is not JSON of the form {"texts": ["...", ...]}'


@pytest.mark.parametrize(
    ("path", "values", "headers", "status", "reason"),
    [
        ("/classify", b"{", {}, 400, FORM),
        ("/classify", {"text": "a"}, {}, 400, FORM),
        ("/classify", {"texts": "a"}, {}, 400, FORM),
        ("/classify", {"texts": [1]}, {}, 400, FORM),
        ("/classify", {"texts": [["a", "b"]]}, {}, 400, FORM),
        ("/classify", b"[" * 1000, {}, 400, FORM),
        ("/classify", {"texts": ["a"] * 5}, {}, 413, "5 texts; at most 4 in a request"),
        ("/classify", {"texts": ["a" * 2000]}, {}, 413, "2015 bytes; at most 2000"),
        ("/classify", {}, {"Content-Length": "9" * 20}, 413, "999"),
        ("/classify", {}, {"Content-Type": "text/plain"}, 415, "Content-Type is not app"),
        ("/other", {"texts": []}, {}, 404, "POST /classify, GET /health or /metrics"),
        ("/classify/", {"texts": []}, {}, 404, "POST /classify, GET /health or /metrics"),
        ("/classify", b"{", {"Content-Type": "Application/JSON; charset=utf-8"}, 400, FORM),
        ("/classify", None, {}, 405, "POST /classify, GET /health or /metrics"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_with_its_reason(server, path, values, headers, status, reason):
    answer = ask_once(server.url, path, values, **headers)
    assert answer.status == status
    assert answer.json["error"].startswith(reason)


def test_health_and_metrics(server):
    assert ask_once(server.url, "/health").json == {"status": "ok"}
    ask_once(server.url, "/classify", {"texts": ["the cat"]})
    found = metrics(server)
    total = sum(number for name, number in found.items() if "requests_total" in name)
    assert found["clozeline_request_seconds_count"] == total >= 2
    assert found['clozeline_request_seconds_bucket{le="+Inf"}'] == total
    assert found["clozeline_texts_total"] >= found["clozeline_batches_total"] > 0
    assert found["clozeline_waiting_texts"] == 0


def test_requests_that_are_refused_before_they_are_read_are_counted_too(server):
    head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    assert raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")[9:12] == b"411"
    assert ask_once(server.url, "/health", Host="evil.example").status == 403
    found = metrics(server)
    for status in (403, 411):
        assert found[f'clozeline_requests_total{{status="{status}"}}'] == 1


class Slow:
    """A classifier that answers when it may."""

    names, text_pair = ("no", "yes"), None

    def __init__(self):
        self.began, self.gate = threading.Event(), threading.Event()

    def classify(self, texts):
        self.began.set()
        self.gate.wait(30)
        return np.full((len(texts), 2), 0.5)


def test_a_request_under_way_is_answered_when_the_server_stops():
    slow, answers = Slow(), []
    with serving(slow) as server:
        idle = connect(server.url)
        assert ask(idle, "/health").status == 200
        client = threading.Thread(
            target=lambda: answers.append(ask_once(server.url, "/classify", {"texts": ["a"]}))
        )
        client.start()
        slow.began.wait(30)
        server.stop()
        slow.gate.set()
        client.join()
    assert [answer.status for answer in answers] == [200]
    with closing(idle), pytest.raises((OSError, HTTPException)):
        ask(idle, "/health")


def test_too_slow_and_too_many_are_told_apart():
    slow = Slow()
    with serving(slow, replace(LIMITS, max_seconds=0.05, max_waiting=4)) as server:
        for texts in (["a"], ["a"] * 4):  # the first is computed, the others wait
            late = ask_once(server.url, "/classify", {"texts": texts})
            assert (late.status, late.json["error"]) == (504, "not done in 0.05 s")
        full = ask_once(server.url, "/classify", {"texts": ["a"]})
        assert (full.status, full.json["error"][:8]) == (503, "too many")
        slow.gate.set()


def test_a_request_that_could_never_wait_is_refused_at_the_start():
    with pytest.raises(ValueError, match="max_waiting is 3; it must be 4 to"):
        replace(LIMITS, max_waiting=3)


class Fails(Slow):
    def classify(self, texts):
        if "nan" in texts.first:
            return np.array([[np.nan, 1.0]] * len(texts))
        raise ZeroDivisionError


def test_errors_of_the_model_are_errors_in_json_and_the_next_batch_is_tried(caplog):
    with serving(Fails()) as server:
        for text, reason in (("a", "an error; see the log"), ("nan", "the classifier's answer is")):
            answer = ask_once(server.url, "/classify", {"texts": [text]})
            assert (answer.status, answer.json["error"][: len(reason)]) == (500, reason)
        assert ask_once(server.url, "/health").status == 200
    assert caplog.text.count("Traceback") == 1


class Pairs(Slow):
    text_pair = "second"


def test_a_pair_is_a_list_of_two_texts():
    with serving(Pairs()) as server:
        for text in ("ab", {"a": 1, "b": 2}, ["a"], ["a", 5]):
            answer = ask_once(server.url, "/classify", {"texts": [text]})
            assert answer.status == 400
            assert answer.json["error"].endswith('{"texts": [["...", "..."], ...]}')


@pytest.mark.slow
def test_the_command_serves_until_sigterm(folder):
    command = [sys.executable, "-m", "clozeline", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert ask_once(url, "/classify", {"texts": ["the cat"]}).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


@pytest.mark.parametrize("name", ["proxy.example:443", "https://proxy.example", "::1", ""])
def test_a_further_host_that_no_request_could_name_is_refused(name, folder):
    said = output_of("serve", folder, "--host", "", "--allowed-host", name, code=2)
    assert f"--allowed-host {name!r}: give a host's name, without a port." in said


def test_a_further_host_is_a_name_or_an_address():
    assert all(map(HOST.fullmatch, ("proxy.example", "10.0.0.1", "[::1]")))
