"""The report of runs: one page that needs nothing beside it, whatever state a run was left in."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from model.heads import count_parameters
from pipeline.config import DataConfig
from pipeline.report.html import REPORT
from tests.support.small import small_tokenizer
from tests.support.small_training import TINY
from tests.support.training_configs import training_config
from train.artifacts.run import RunConfig, write_run, write_summary
from train.cli import main
from train.monitoring.run_history import RunHistory
from train.monitoring.run_report import page_of

LOOK = {"heldout/mlm_loss": 3.25, "heldout/mlm_accuracy": 0.31, "heldout/unigram_loss": 4.5}


def line(step: int, **changes: Any) -> dict[str, Any]:
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


def make_run(folder: Path, lines: list[dict[str, Any]], **training: Any) -> Path:
    tokenizer = small_tokenizer()
    config = RunConfig(
        model=TINY,
        training=training_config(max_steps=50, **training),
        data=DataConfig(max_seq_length=16),
        dataset_digest="0" * 64,
        tokenizer_digest=tokenizer.digest,
    )
    write_run(folder, config, tokenizer)
    text = "".join(json.dumps(values) + "\n" for values in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


LINES = [line(step) for step in (1, 10, 20, 30, 40, 50)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run(tmp_path / "one", [*LINES, {"step": 50, **LOOK}])
    write_summary(folder, 50, {"mlm_loss": 3.25})
    return folder


def report(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def page(*arguments: object) -> str:
    result = report(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return Path(result.stdout.strip()).read_text()


def refused(*arguments: object) -> str:
    result = report(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.count("\n") == 1
    return result.stderr


def captions(html: str) -> list[str]:
    return re.findall("<figcaption>(.*?)</figcaption>", html)


def test_the_page_is_in_the_run_and_has_a_chart_for_each_metric(run):
    assert report(run).stdout == f"{run / REPORT}\n"
    assert captions((run / REPORT).read_text()) == [
        *("masked-LM loss", "NSP loss", "masked-LM accuracy", "NSP accuracy"),
        *("learning rate", "gradient norm", "tokens/s", "waiting for data"),
    ]
    assert not list(run.glob(".*"))


def test_the_page_needs_and_runs_nothing_else(run):
    html = page(run)
    assert not re.search(r"<script|<link|<img|@import|https?://(?!www\.w3\.org)", html)


def test_the_key_figures_are_those_of_the_run(run):
    figures = dict(page_of([RunHistory.of(run, "one")]).figures)
    assert figures["state"] == "complete"
    assert figures["last logged step"] == "50 of 50"
    assert figures["masked-LM loss, held out"] == "3.250"
    assert figures["unigram loss, held out"] == "4.500"
    assert figures["masked-LM accuracy, held out"] == "31.0%"
    assert figures["masked-LM loss"] == "3.748"  # the mean of the six lines
    assert figures["tokens/s, median"] == "1,000"
    assert "MFU" not in figures  # it was not measured
    assert figures["parameters"] == f"{count_parameters(TINY):,}"


def test_every_setting_is_on_the_page(run):
    html = page(run)
    for name in ("training: learning_rate", "model: hidden_size", "data: max_seq_length"):
        assert f"<td>{name}</td>" in html


def test_the_same_run_gives_the_same_bytes(run):
    assert page(run) == page(run)


def test_mfu_is_drawn_if_it_was_measured(tmp_path):
    html = page(make_run(tmp_path / "gpu", [line(step, mfu=0.4) for step in (1, 2)]))
    assert "MFU" in captions(html)
    assert "<dd>40.0%</dd>" in html


def test_health_warnings_are_on_the_page(tmp_path):
    html = page(make_run(tmp_path / "sick", [line(1), line(2, gradient_norm=0.0)]))
    assert "<td>2</td><td>the gradient norm is 0" in html


def test_the_unigram_of_the_first_line_is_that_of_the_warnings(tmp_path):
    """As during training, with or without an evaluation."""
    lines = [line(step, mlm_loss=6.0 + 0.1 * (step % 2)) for step in range(1, 121)]
    lines[0]["unigram_loss"] = 6.0
    html = page(make_run(tmp_path / "parked", [*lines, {"step": 120, **LOOK}]))
    assert "counting tokens alone gives 6.000" in html


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_run_killed_after_a_few_lines_is_drawn_as_far_as_it_got(tmp_path, number):
    folder = make_run(tmp_path / "killed", LINES[:number])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "mlm_l')
    html = page(folder)
    assert "not complete" in html
    assert len(captions(html)) == (8 if number else 0)


def test_a_run_without_a_file_of_metrics_is_drawn_too(tmp_path):
    folder = make_run(tmp_path / "new", [])
    (folder / "metrics.jsonl").unlink()
    assert "0 of 50" in page(folder)


def test_a_value_that_is_not_finite_is_left_out(tmp_path):
    html = page(make_run(tmp_path / "nan", [*LINES, line(60, mlm_loss=float("nan"))]))
    assert "mlm_loss is nan" in html
    assert "3.748" in html


def test_thousands_of_lines_fit_on_a_page(tmp_path):
    html = page(make_run(tmp_path / "long", [line(step) for step in range(1, 3001)]))
    assert "masked-LM loss, means of 15 logged steps" in captions(html)
    assert len(html) < 300_000


def test_several_runs_are_plotted_together_on_the_page_of_the_first(run, tmp_path):
    other = make_run(tmp_path / "two", LINES[:3], learning_rate=0.25)
    assert report(run, other).stdout == f"{run / REPORT}\n"
    html = (run / REPORT).read_text()
    assert "masked-LM loss, held out" in captions(html)
    assert "<td>training: learning_rate</td><td>0.001</td><td>0.25</td>" in html
    assert html.count("training: learning_rate") == 3  # the table of differences, and two configs
    assert "<td>last logged step</td><td>50</td><td>20</td>" in html


def test_the_page_names_the_step_from_which_the_data_differ(run, tmp_path):
    names = {"same": {}, "late": {30: "f" * 16}, "early": {1: "f" * 16}}
    made = {
        name: make_run(
            tmp_path / name,
            [values | {"data_digest": other.get(values["step"], values["data_digest"])}
             for values in LINES],
        )
        for name, other in names.items()
    }  # fmt: skip
    apart = make_run(tmp_path / "apart", [line(7)])
    html = page(run, made["same"], made["late"], made["early"])
    assert "same: same data as one in all 6 steps that both logged, up to step 50." in html
    assert "late: different data from one from step 30 on (same up to step 20)." in html
    assert "early: different data from one from step 1 on (no earlier step in common)" in html
    assert "apart: has no logged step in common with one, so" in page(run, apart)


def test_runs_of_the_same_name_are_distinguished(run, tmp_path):
    long = "a-name-as-long-as-they-come-of-a-sweep-"
    twins = [make_run(tmp_path / folder / (long + "one"), LINES) for folder in ("a", "b")]
    other = make_run(tmp_path / "elsewhere" / "one", LINES)
    html = page(run, other)
    assert "<th>elsewhere/one</th>" in html
    assert "<th>one</th>" not in html
    assert "<th>1: …come-of-a-sweep-one</th>" in page(*twins)
    assert "<th>1: " in page(run, run)


def test_a_name_is_text_and_not_markup(tmp_path):
    html = page(make_run(tmp_path / "<b>$x$", LINES))
    assert "&lt;b&gt;$x$" in html
    assert "<b>" not in html


def test_what_a_user_can_fix_is_one_line(run, tmp_path):
    assert "give a data set, a run or a classifier." in refused(tmp_path)
    assert "does not exist; check the path." in refused(tmp_path / "nothing")
    assert "give a run of `clozeline pretrain`." in refused(run, tmp_path)
    assert "5 runs are too many for a page; give at most 4" in refused(*[run] * 5)
    assert "is a folder; give --out the name of a file" in refused(run, "--out", tmp_path)
    (run / "metrics.jsonl").write_text("{}\n{}\n")
    assert "line 1 of" in refused(run)
    (run / "run.json").write_text("{")
    assert "run.json cannot be read" in refused(run)
    assert not (run / REPORT).exists()
