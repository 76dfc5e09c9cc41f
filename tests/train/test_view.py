"""`clozeline view`: the pages of runs and classifiers, the exported page, and the command."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pytest

from clozeline.pipeline.common.paths import path_of
from clozeline.train.monitoring.metrics import METRICS, read_metrics
from clozeline.train.monitoring.run_history import RunHistory
from clozeline.train.view.view import make_site
from tests.support.command import invoke, refused
from tests.support.http_clients import request, running
from tests.support.small_jobs import ROOT

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest_plugins = ["tests.support.view_fixtures"]


def embedded(html):
    """The values that a page hands to its script."""
    (text,) = re.findall(r'<script type="application/json" data-values>(.*?)</script>', html, re.S)
    return json.loads(text)


# --- what there is


@pytest.mark.parametrize("path", ["dataset", "examples", "curves", "classifier", "predictions"])
def test_each_page_names_itself_and_loads_only_from_the_server(server, path):
    html = request(server, f"/{path}").text
    assert re.search(rf'<a href="/{path}" aria-current="page">', html)
    assert html.count("<h1>") == 1
    loaded = re.findall(r'(?:src|href)="([^"#]*)"', html)
    assert all(address == "data:," or address.startswith("/") for address in loaded)
    assert not re.search(r"\son\w+=|javascript:|<script>", html)  # no script of the page itself


def test_scripts_and_styles_are_files_of_the_package(server):
    script, style = request(server, "/script.js"), request(server, "/style.css")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert style.headers["Content-Type"] == "text/css; charset=utf-8"
    assert "startCurves" in script.text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script.text)
    assert "https://" not in script.text + style.text


def test_pages_are_those_that_the_folders_have(small_folder, run, classifier):
    def names(*folders):
        return [tab.name for tab in make_site(folders).tabs]

    assert names(small_folder) == ["Data set", "Examples"]
    assert names(run) == ["Curves"]
    assert names(classifier) == ["Classifier", "Predictions"]
    assert names(classifier, run, small_folder) == [
        *("Data set", "Examples", "Curves", "Classifier", "Predictions")
    ]


# --- curves


def test_curves_are_the_metrics_of_the_run(server, run):
    values = embedded(request(server, "/curves").text)
    (found,) = values["runs"]
    history = RunHistory.of(run, "run")
    for name in ("mlm_loss", "heldout/mlm_loss", "gradient_norm"):
        steps, numbers = history.points(name)
        assert found["series"][name][0] == steps.tolist()
        assert found["series"][name][1] == pytest.approx(numbers.tolist(), rel=1e-5)
    first = values["charts"][0]
    assert first["lines"][:2] == [["training", "mlm_loss"], ["held out", "heldout/mlm_loss"]]
    assert found["complete"]


def test_a_growing_run_is_read_again_and_an_unchanged_one_is_not_sent(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    with running(make_site([copy]).server()) as server:
        before = request(server, "/curves.json").json
        same = request(server, f"/curves.json?version={before['version']}").json
        assert same == {"version": before["version"]}
        line = json.dumps({**read_metrics(run)[0], "step": 13, "gradient_norm": 0.0})
        with (copy / METRICS).open("a") as file:
            file.write(f'{line}\n{{"step": 14, "mlm_')
        after = request(server, f"/curves.json?version={before['version']}").json
    (grown,) = after["runs"]
    assert grown["step"] == 13
    assert "the gradient norm is 0" in grown["warnings"][-1]["words"]
    assert grown["warnings"][-1]["step"] == 13
    assert ["last logged step", "13 of 12"] in after["figures"]


def test_pages_are_whole_while_32_clients_read_them_and_the_run_goes_on(
    small_folder, run, classifier, tmp_path
):
    copy = shutil.copytree(run, tmp_path / "run")
    first = (run / METRICS).read_text().splitlines()[0]
    is_read = threading.Event()

    def go_on():
        """What training does: lines that come in two parts, checkpoints in place of older ones."""
        step = 12
        while not is_read.wait(0.01):
            step += 1
            with (copy / METRICS).open("a") as file:
                for part in (first[:9], f"{step}{first[10:]}\n"):
                    file.write(part)
                    file.flush()
            older, newer = (copy / f"checkpoints/step-{n:08d}" for n in (step - 1, step))
            shutil.copytree(older, tmp_path / "new").rename(newer)
            shutil.rmtree(older)

    site = make_site([small_folder, copy, classifier])
    asked = [partial(request, path=name[4:]) for name in site.routes() if name.startswith("GET ")]
    with running(site.server()) as server, ThreadPoolExecutor(33) as pool:
        writing = pool.submit(go_on)
        replies = list(pool.map(lambda ask: ask(server), asked * 2))
        is_read.set()
        writing.result()
    assert {reply.text for reply in replies if reply.status >= 400} == set()


def test_runs_are_drawn_over_each_other(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "<b>other")
    with running(make_site([run, other]).server()) as server:
        html = request(server, "/curves").text
        assert [r["name"] for r in embedded(html)["runs"]] == ["run", "<b>other"]
        assert "&lt;b&gt;other" in html
        assert "<b>other" not in html
        assert "The configs are equal." in html


# --- the command


def test_the_exported_page_is_one_file_that_runs_only_its_own_script(site, tmp_path):
    out = tmp_path / "page.html"
    site.export(out)
    html = out.read_text()
    loaded = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(loaded) == {"data:,"}
    assert re.search(r"script-src 'sha256-[\w+/]{43}='", html)
    for name in ("examples", "curves", "classifier"):
        assert f'<section id="{name}">' in html
        assert f'<a href="#{name}">' in html
    assert "<form" not in html
    assert "data-live" not in re.sub(r"<script>.*</script>", "", html, flags=re.S)
    assert not list(tmp_path.glob(".*"))


def test_what_a_user_can_fix_is_one_line(small_folder, run, classifier, tmp_path):
    assert "is an empty folder; give a data set, a run or a cl" in refused("view", tmp_path)
    assert "is a file and not a folder" in refused("view", __file__)
    assert "2 folders are a data set" in refused("view", small_folder, small_folder)
    assert "5 folders are a run; a page shows at most 4" in refused("view", *[run] * 5)
    assert "2 folders are a classifier" in refused("view", classifier, run, classifier)
    assert "is a folder; give" in refused("view", small_folder, "--export", tmp_path)
    options = ("--export", tmp_path / "a.html", "--port=8000")
    assert "leave it out with --export" in refused("view", small_folder, *options)
    (tmp_path / "a.jsonl").write_text('{"text": "One."}')
    for line in (("view", small_folder, "--export"), ("report", small_folder, "--out")):
        assert "exists and is not an HTML page" in refused(*line, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == '{"text": "One."}'
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "run.json").write_text("{")
    assert "run.json cannot be read" in refused("view", copy)


def test_shards_in_a_store_can_be_browsed(small_folder):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.put(str(small_folder), "/view", recursive=True)
    try:
        _, make = make_site([path_of("memory://view")]).routes()["GET /examples"]
        assert "row 0</h3>" in make({})
    finally:
        store.rm("/view", recursive=True)


def test_a_run_in_a_store_is_shown_from_a_copy(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOZELINE_CACHE", str(tmp_path / "cache"))
    out, pages = tmp_path / "page.html", set()
    for given in (f"file://{run}", str(run)):
        assert invoke("view", given, "--export", out).stdout == f"{out}\n"
        pages.add(out.read_text().replace(given, "GIVEN"))
    assert len(pages) == 1


def test_ctrl_c_ends_the_command_without_an_error(small_folder):
    """In a process of its own, which is asked for a page first."""
    command = [sys.executable, "-m", "clozeline", "view", str(small_folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes) as process:
        url = process.stdout.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        with build_opener(ProxyHandler({})).open(url, timeout=60) as page:
            assert b"<h1>Examples</h1>" in page.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (0, "")


# --- colours


def luminance(colour):
    """WCAG 2.1, relative luminance of "#rrggbb"."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_dark_mode(server):
    """WCAG 2.1 AA: 4.5 for text, 3 for lines."""
    style = request(server, "/style.css").text
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
                   for block in re.findall(r":root \{(.*?)\}", style, re.S))  # fmt: skip
    assert light.keys() == dark.keys()
    chips = ("span-a", "span-b", "masked", "random", "kept", "right", "wrong")
    for colours in (light, dark):
        for name in ("paper", *chips):
            assert contrast(colours["ink"], colours[name]) >= 4.5, name
        assert contrast(colours["quiet"], colours["paper"]) >= 4.5
        assert contrast(colours["series-1"], colours["paper"]) >= 4.5  # links
        for number in range(1, 5):
            assert contrast(colours[f"series-{number}"], colours["paper"]) >= 3
        for one, other in combinations(("masked", "random", "kept"), 2):
            assert colours[one] != colours[other]
