"""The report of runs: one page that needs nothing beside it, whatever state a run was left in."""

import json
import re
from pathlib import Path

import pytest

from clozeline.model.heads import count_parameters
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import REPORT
from clozeline.train.artifacts.run import RunConfig, write_run, write_summary
from clozeline.train.monitoring.run_history import RunHistory
from clozeline.train.report.run_chapter import lines_of
from tests.support.command import invoke, refused
from tests.support.small import small_tokenizer
from tests.support.small_training import TINY
from tests.support.training_configs import training_config

pytest.importorskip("jinja2")

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
def run(tmp_path):
    folder = make_run(tmp_path / "one", [*LINES, {"step": 50, **LOOK}])
    write_summary(folder, 50, {"mlm_loss": 3.25})
    return folder


def page(*arguments):
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


def test_the_page_is_in_the_run_and_has_a_line_for_each_metric(run):
    assert invoke("report", run).stdout == f"{run / REPORT}\n"
    assert len(charts((run / REPORT).read_text())) == 8
    assert series(run) == {
        "training": ([1, 10, 20, 30, 40, 50], [3.99, 3.9, 3.8, 3.7, 3.6, 3.5]),
        "held out": ([50], [3.25]),
        "token frequencies alone": ([50], [4.5]),
    }
    assert not list(run.glob(".*"))


def test_the_key_figures_are_those_of_the_run(run):
    found = figures(page(run))
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
    html = page(folder)
    assert charts(html)[-1].startswith("MFU: ")
    assert "<dd>40.0%</dd>" in html


def test_the_unigram_of_the_first_line_is_that_of_the_warnings(tmp_path):
    """As during training, with or without an evaluation."""
    lines = [line(step, mlm_loss=6.0 + 0.1 * (step % 2)) for step in range(1, 121)]
    lines[0]["unigram_loss"] = 6.0
    html = page(make_run(tmp_path / "parked", [*lines, {"step": 120, **LOOK}]))
    assert "counting tokens alone gives 6.000" in html


def test_the_last_warning_of_each_cause_is_shown(tmp_path):
    """Here the loss jumps twice."""
    values = [3.0 + 0.01 * (step % 3) + 9.0 * (step in (60, 100)) for step in range(120)]
    lines = [line(step, mlm_loss=value) for step, value in enumerate(values, start=1)]
    shown = re.findall(
        r"<li>⚠ jumps, step (\d+): .* jumped to", page(make_run(tmp_path / "jumps", lines))
    )
    assert shown == ["101"]


@pytest.mark.parametrize("number", [0, 2])
def test_a_run_killed_after_a_few_lines_is_drawn_as_far_as_it_got(tmp_path, number):
    folder = make_run(tmp_path / "killed", LINES[:number])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "mlm_l')
    html = page(folder)
    assert "not complete" in html
    assert len(charts(html)) == (8 if number else 0)
    (folder / "metrics.jsonl").unlink()
    assert "0 of 50" in page(folder)


def test_a_value_that_is_not_finite_is_left_out(tmp_path):
    html = page(make_run(tmp_path / "nan", [*LINES, line(60, mlm_loss=float("nan"))]))
    assert figures(html)["masked-LM loss"] == "3.748"


def test_thousands_of_lines_fit_on_a_page(tmp_path):
    folder = make_run(tmp_path / "long", [line(step) for step in range(1, 3001)])
    steps, values = series(folder)["training"]
    assert len(steps) == len(values) == 100
    assert (steps[0], values[0]) == (15.5, pytest.approx(3.845))  # means of the first thirty
    assert len(page(folder)) < 500_000


def test_several_runs_are_plotted_together_on_the_page_of_the_first(run, tmp_path):
    other = make_run(tmp_path / "two", LINES[:3], learning_rate=0.25)
    assert invoke("report", run, other).stdout == f"{run / REPORT}\n"
    html = (run / REPORT).read_text()
    assert {"one", "two"} <= {*re.findall(">([^<]*)</text>", html)}
    assert "Dashed lines are of held-out examples." in html
    assert "<td>training: learning_rate</td><td>0.001</td><td>0.25</td>" in html
    assert "<td>last logged step</td><td>50 of 50</td><td>20 of 50</td>" in html


def test_runs_of_the_same_name_are_distinguished(run, tmp_path):
    long = "a-name-as-long-as-they-come-of-a-sweep-"
    twins = [make_run(tmp_path / folder / (long + "one"), LINES) for folder in ("a", "b")]
    other = make_run(tmp_path / "elsewhere" / "one", LINES)
    assert "<th>1: one</th><th>2: one</th>" in page(run, other)
    assert "<th>1: …come-of-a-sweep-one</th>" in page(*twins)


def test_files_that_cannot_be_read_are_one_line(run):
    (run / "metrics.jsonl").write_text("{}\n{}\n")
    assert "line 1 of" in refused("report", run)
    (run / "run.json").write_text("{")
    assert "run.json cannot be read" in refused("report", run)
    assert not (run / REPORT).exists()
