"""`clozeline view`: the page of a report, made again at each load; colours; a real browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import combinations
from threading import Thread

import numpy as np
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.report.page import page_server
from clozeline.train.monitoring.metrics import METRICS, read_metrics
from clozeline.train.report.cli import page_of, sorted_by_kind
from tests.support.browser import CHROMIUM, DRIVER, INSTALL, chromium
from tests.support.command import invoke, refused
from tests.support.http_clients import ask_once
from tests.support.small_classifier import write_small_classifier
from tests.support.small_jobs import ROOT
from tests.support.small_training import STILL, train

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(small_folder, tmp_path_factory):
    """12 steps, evaluated at 4, 8 and 12."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small_folder, out, model=STILL, eval_every=4)
    return out


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Its name would be markup if a page did not escape it."""
    return write_small_classifier(tmp_path_factory.mktemp("classifiers") / "<i>one")


@pytest.fixture(scope="module")
def page(small_folder, run, classifier, tmp_path_factory):
    """The page of all three."""
    page = tmp_path_factory.mktemp("pages") / "page.html"
    assert invoke("report", small_folder, run, classifier, "--out", page).stdout == f"{page}\n"
    return page


@contextmanager
def serving(make):
    """The address of a server that answers from a thread."""
    with page_server(make) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_page_has_a_chapter_for_each_kind_and_loads_nothing(page, small_folder, run):
    html = page.read_text()
    assert re.findall(r"<h1>(.*)</h1>", html) == ["Data set", "Run", "Classifier"]
    assert re.findall(r'<a href="#(.*?)">', html) == ["data-set", "run", "classifier"]
    assert f"<title>{small_folder.name}, run, &lt;i&gt;one</title>" in html
    loaded = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(loaded) == {"data:,"}
    assert not re.search(r"<script|<i>|<form|\son\w+=|javascript:", html)
    assert "default-src 'none'" in html


def test_a_reload_shows_what_a_run_has_logged_since(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    by_kind = sorted_by_kind([copy])
    with serving(lambda: page_of(by_kind, title="run")) as url:
        before = ask_once(url, "/")
        assert before.status == 200
        assert before.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<dd>12 of 12</dd>" in before.text
        line = json.dumps({**read_metrics(run)[0], "step": 13, "mlm_loss": float("nan")})
        with (copy / METRICS).open("a") as file:
            file.write(f'{line}\n{{"step": 14, "mlm_')
        after = ask_once(url, "/").text
        assert "<dd>13 of 12</dd>" in after
        (copy / "run.json").write_text("{")
        damaged = ask_once(url, "/")
        assert (damaged.status, "run.json cannot be read" in damaged.text) == (500, True)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_only_the_own_address_is_answered(host):
    with serving(lambda: "the page") as url:
        assert ask_once(url, "/", Host=host).status == 403
        port = url.rpartition(":")[2]
        assert ask_once(url, "/", Host=f"localhost:{port}").text == "the page"


def test_a_taken_port_is_one_line():
    with page_server(str) as server:
        taken = server.server_port
        with pytest.raises(InputError, match=rf"127.0.0.1:{taken}: .*; give another --port"):
            page_server(str, port=taken)


def test_what_a_user_can_fix_is_one_line(small_folder, run, classifier, tmp_path):
    for command in ("view", "report"):
        said = refused(command, tmp_path)
        assert "is an empty folder; give a data set, a run or a cl" in said
        assert "is a file and not a folder" in refused(command, __file__)
        assert "2 folders are a data set" in refused(command, small_folder, small_folder)
        assert "5 folders are a run; a page shows at most 4" in refused(command, *[run] * 5)
        assert "2 folders are a classifier" in refused(command, classifier, run, classifier)
    other = tmp_path / "a.jsonl"
    other.write_text('{"text": "One."}')
    assert "exists and is not an HTML page" in refused("report", small_folder, "--out", other)
    assert other.read_text() == '{"text": "One."}'
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "run.json").write_text("{")
    assert "run.json cannot be read" in refused("view", copy)


def test_a_run_in_a_store_is_shown_from_a_copy(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOZELINE_CACHE", str(tmp_path / "cache"))
    out, pages = tmp_path / "page.html", set()
    for given in (f"file://{run}", str(run)):
        assert invoke("report", given, "--out", out).stdout == f"{out}\n"
        pages.add(out.read_text())
    assert len(pages) == 1


def test_ctrl_c_ends_the_command_without_an_error(small_folder):
    """In a process of its own, which is asked for a page first."""
    command = [sys.executable, "-m", "clozeline", "view", str(small_folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes) as process:
        url = process.stdout.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert "<h1>Data set</h1>" in ask_once(url, "/").text
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (0, "")


def luminance(colour):
    """WCAG 2.1, relative luminance of "#rrggbb"."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_dark_mode(page):
    """WCAG 2.1 AA: 4.5 for text, 3 for lines."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", page.read_text(), re.S)
    )
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for name in ("paper", "span-a", "span-b", "masked", "random", "kept"):
            assert contrast(colours["ink"], colours[name]) >= 4.5, name
        assert contrast(colours["quiet"], colours["paper"]) >= 4.5
        assert contrast(colours["series-1"], colours["paper"]) >= 4.5  # links
        for number in range(1, 5):
            assert contrast(colours[f"series-{number}"], colours["paper"]) >= 3
        for one, other in combinations(("masked", "random", "kept"), 2):
            assert colours[one] != colours[other]


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=INSTALL)
def test_the_page_fits_every_window_in_light_and_dark_mode(page, tmp_path):
    too_wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with chromium(tmp_path) as browser:
        for width in (1400, 390):
            for dark, paper in {True: "rgb(20, 23, 30)", False: "rgb(255, 255, 255)"}.items():
                browser.emulate(width=width, dark=dark)
                browser.open(page.as_uri())
                assert browser.run(too_wide) <= 0
                assert browser.log() == []
                colour = "return getComputedStyle(document.body).backgroundColor"
                assert browser.run(colour) == paper
