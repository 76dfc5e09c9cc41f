"""`clozeline view` and `report`: the page, made again at each load; runs on it; colours."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from clozeline.model.heads import count_parameters
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import REPORT
from clozeline.pipeline.report.page import page_server
from clozeline.train.artifacts.run import RunConfig, write_run, write_summary
from clozeline.train.monitoring.metrics import METRICS, read_metrics
from clozeline.train.report.cli import page_of, sorted_by_kind
from clozeline.train.report.run_chapter import RunHistory, lines_of
from tests.support.browser import CHROMIUM, DRIVER, INSTALL, chromium
from tests.support.command import invoke, refused
from tests.support.small import small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_jobs import ROOT
from tests.support.small_runs import training_config
from tests.support.small_training import TINY
from tests.support.waiting import ask_once

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Its name would be markup if a page did not escape it."""
    return write_small_classifier(tmp_path_factory.mktemp("classifiers") / "<i>one")


@pytest.fixture(scope="module")
def page(small_folder, finished, classifier, tmp_path_factory):
    """The page of all three."""
    page = tmp_path_factory.mktemp("pages") / "page.html"
    assert invoke("report", small_folder, finished, classifier, "--out", page).stdout == f"{page}\n"
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


def test_the_page_has_a_chapter_for_each_kind_and_loads_nothing(page, small_folder):
    html = page.read_text()
    assert re.findall(r"<h1>(.*)</h1>", html) == ["Data set", "Run", "Classifier"]
    assert re.findall(r'<a href="#(.*?)">', html) == ["data-set", "run", "classifier"]
    assert f"<title>{small_folder.name}, run, &lt;i&gt;one</title>" in html
    loaded = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(loaded) == {"data:,"}
    assert not re.search(r"<script|<i>|<form|\son\w+=|javascript:", html)
    assert "default-src 'none'" in html


def test_a_reload_shows_what_a_run_has_logged_since(run):
    by_kind = sorted_by_kind([run])
    with serving(lambda: page_of(by_kind, title="run")) as url:
        before = ask_once(url, "/")
        assert before.status == 200
        assert before.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<dd>12 of 12</dd>" in before.text
        line = json.dumps({**read_metrics(run)[0], "step": 13, "mlm_loss": float("nan")})
        with (run / METRICS).open("a") as file:
            file.write(f'{line}\n{{"step": 14, "mlm_')
        after = ask_once(url, "/").text
        assert "<dd>13 of 12</dd>" in after
        (run / "run.json").write_text("{")
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
    (tmp_path / "empty").mkdir()
    for command in ("view", "report"):
        said = refused(command, tmp_path / "empty")
        assert "is an empty folder; give a data set, a run or a cl" in said
        assert "is a file and not a folder" in refused(command, __file__)
        assert "2 folders are a data set" in refused(command, small_folder, small_folder)
        assert "5 folders are a run; a page shows at most 4" in refused(command, *[run] * 5)
        assert "2 folders are a classifier" in refused(command, classifier, run, classifier)
    other = tmp_path / "a.jsonl"
    other.write_text('{"text": "One."}')
    assert "exists and is not an HTML page" in refused("report", small_folder, "--out", other)
    assert other.read_text() == '{"text": "One."}'
    (run / "run.json").write_text("{")
    assert "run.json cannot be read" in refused("view", run)


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


# --- The page of runs, whatever state they were left in -------------------------------------------

LOOK = {"heldout/mlm_loss": 3.25, "heldout/mlm_accuracy": 0.31, "heldout/unigram_loss": 4.5}


def line(step, **changes):
    return {
        "step": step,
        "mlm_loss": 4.0 - step / 100,
        "mlm_accuracy": step / 200,
        "learning_rate": 1e-3,
        "gradient_norm": 1.5,
        "tokens_per_second": 1000.0,
        "data_wait": 0.01,
        "data_digest": f"{step:016x}",
        "nsp_loss": 0.6,
        "nsp_accuracy": 0.7,
    } | changes


def make_run(folder, lines, **training):
    tokenizer = small_tokenizer()
    config = RunConfig(
        model=TINY,
        training=training_config(max_steps=50, **training),
        data=DataConfig(max_seq_length=16),
        dataset_digest="0" * 64,
        tokenizer_digest=tokenizer.digest,
        phases=(),
    )
    write_run(folder, config, tokenizer)
    text = "".join(json.dumps(values) + "\n" for values in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


LINES = [line(step) for step in (1, 10, 20, 30, 40, 50)]


@pytest.fixture
def one(tmp_path):
    folder = make_run(tmp_path / "one", [*LINES, {"step": 50, **LOOK}])
    write_summary(folder, 50, {"mlm_loss": 3.25})
    return folder


def reported(*arguments):
    result = invoke("report", *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return Path(result.stdout.strip()).read_text()


def series(folder, metric="mlm_loss"):
    """Steps and values of the lines of a metric's chart, by their labels."""
    lines = lines_of(metric, [RunHistory.of(folder, "run")])
    return {line.label: (line.x.tolist(), line.y.tolist()) for line in lines}


def charts(html):
    """The metrics that are drawn, by the first words of their captions."""
    return re.findall("<figcaption>(.*?)</figcaption>", html)


def figures(html):
    """The key figures at the top."""
    return dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html))


def test_the_page_is_in_the_run_and_has_a_line_for_each_metric(one):
    assert invoke("report", one).stdout == f"{one / REPORT}\n"
    assert len(charts((one / REPORT).read_text())) == 8
    assert series(one) == {
        "training": ([1, 10, 20, 30, 40, 50], [3.99, 3.9, 3.8, 3.7, 3.6, 3.5]),
        "held out": ([50], [3.25]),
        "token frequencies alone": ([50], [4.5]),
    }
    assert not list(one.glob(".*"))


def test_the_key_figures_are_those_of_the_run(one):
    found = figures(reported(one))
    assert found["state"] == "complete"
    assert found["last logged step"] == "50 of 50"
    assert found["masked-LM loss, held out"] == "3.250"
    assert found["unigram loss, held out"] == "4.500"
    assert found["masked-LM accuracy, held out"] == "31.0%"
    assert found["masked-LM loss"] == "3.748"  # the mean of the six lines
    assert found["tokens/s, median"] == "1,000"
    assert "MFU" not in found  # it was not measured
    assert found["parameters"] == f"{count_parameters(TINY):,}"


def test_mfu_is_drawn_if_it_was_measured(tmp_path):
    folder = make_run(tmp_path / "gpu", [line(step, mfu=0.4) for step in (1, 2)])
    assert series(folder, "mfu") == {"training": ([1, 2], [0.4, 0.4])}
    html = reported(folder)
    assert charts(html)[-1].startswith("MFU: ")
    assert "<dd>40.0%</dd>" in html


def test_the_unigram_of_the_first_line_is_that_of_the_warnings(tmp_path):
    """As during training, with or without an evaluation."""
    lines = [line(step, mlm_loss=6.0 + 0.1 * (step % 2)) for step in range(1, 121)]
    lines[0]["unigram_loss"] = 6.0
    html = reported(make_run(tmp_path / "parked", [*lines, {"step": 120, **LOOK}]))
    assert "counting tokens alone gives 6.000" in html


def test_the_last_warning_of_each_cause_is_shown(tmp_path):
    """Here the model waits three times."""
    lines = [line(step, data_wait=0.5 * (step % 50 < 5)) for step in range(1, 121)]
    html = reported(make_run(tmp_path / "slow", lines))
    assert re.findall(r"<li>⚠ slow, step (\d+): .* the model waits", html) == ["102"]


@pytest.mark.parametrize("number", [0, 2])
def test_a_run_killed_after_a_few_lines_is_drawn_as_far_as_it_got(tmp_path, number):
    folder = make_run(tmp_path / "killed", LINES[:number])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "mlm_l')
    html = reported(folder)
    assert "not complete" in html
    assert len(charts(html)) == (8 if number else 0)
    (folder / "metrics.jsonl").unlink()
    assert "0 of 50" in reported(folder)


def test_a_value_that_is_not_finite_is_left_out(tmp_path):
    html = reported(make_run(tmp_path / "nan", [*LINES, line(60, mlm_loss=float("nan"))]))
    assert figures(html)["masked-LM loss"] == "3.748"


def test_thousands_of_lines_fit_on_a_page(tmp_path):
    folder = make_run(tmp_path / "long", [line(step) for step in range(1, 3001)])
    steps, values = series(folder)["training"]
    assert len(steps) == len(values) == 100
    assert (steps[0], values[0]) == (15.5, pytest.approx(3.845))  # means of the first thirty
    assert len(reported(folder)) < 500_000


def test_several_runs_are_plotted_together_on_the_page_of_the_first(one, tmp_path):
    other = make_run(tmp_path / "two", LINES[:3], learning_rate=0.25)
    assert invoke("report", one, other).stdout == f"{one / REPORT}\n"
    html = (one / REPORT).read_text()
    assert {"one", "two"} <= {*re.findall(">([^<]*)</text>", html)}
    assert "Dashed lines are of held-out examples." in html
    assert "<td>training: learning_rate</td><td>0.001</td><td>0.25</td>" in html
    assert "<td>last logged step</td><td>50 of 50</td><td>20 of 50</td>" in html


def test_runs_of_the_same_name_are_distinguished(one, tmp_path):
    long = "a-name-as-long-as-they-come-of-a-sweep-"
    twins = [make_run(tmp_path / folder / (long + "one"), LINES) for folder in ("a", "b")]
    other = make_run(tmp_path / "elsewhere" / "one", LINES)
    assert "<th>1: one</th><th>2: one</th>" in reported(one, other)
    assert "<th>1: …come-of-a-sweep-one</th>" in reported(*twins)


def test_files_that_cannot_be_read_are_one_line(one):
    (one / "metrics.jsonl").write_text("{}\n{}\n")
    assert "line 1 of" in refused("report", one)
    assert not (one / REPORT).exists()
