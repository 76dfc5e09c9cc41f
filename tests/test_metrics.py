"""One line a step in metrics.jsonl and TensorBoard, however often a run restarts."""

import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import click
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.train.monitoring.health import Health
from clozeline.train.monitoring.metrics import MetricsLog, read_metrics
from tests.support.files import no_file_longer_than
from tests.support.small_jobs import python


def write(run: Path, steps, *, after=0, health=None, **values) -> None:
    """As a command does: called from Python, it shows no progress."""
    with (
        click.Context(click.Command("pretrain")),
        MetricsLog(run, start_step=after, max_steps=20, writes=True, health=health) as log,
    ):
        for step in steps:
            log.write(step, {"mlm_loss": 10.0 - step, **values})
            log.advance()


def write_to_the_end(log: MetricsLog) -> None:
    with log:
        for step in range(200):
            log.write(step, {"mlm_loss": 1.0})


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run)]


@pytest.mark.parametrize("size", [0, 4000])
def test_a_full_disk_is_one_line(size, tmp_path, capfd):
    """Also where the writer of TensorBoard finds it first, in its thread."""
    log = MetricsLog(tmp_path, start_step=0, max_steps=None, writes=True)
    complaint = (
        r"the metrics of .* cannot be written \(File too large\); its checkpoints are intact"
    )
    with pytest.raises(JobFailedError, match=complaint), no_file_longer_than(size):
        write_to_the_end(log)
    assert "Traceback" not in capfd.readouterr().err


def test_a_line_holds_the_step_and_the_values(tmp_path):
    write(tmp_path, [1], data_digest="0f", nsp_accuracy=0.5)
    line = '{"step": 1, "mlm_loss": 9.0, "data_digest": "0f", "nsp_accuracy": 0.5}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == line


def test_tensorboard_shows_the_numbers_and_no_text(tmp_path):
    write(tmp_path, [1, 2, 4], data_digest="0f")
    assert scalars(tmp_path, "mlm_loss") == [(1, 9.0), (2, 8.0), (4, 6.0)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "data_digest")


def test_lines_after_the_start_are_of_a_killed_process(tmp_path):
    write(tmp_path, range(1, 10))
    write(tmp_path, range(6, 8), after=5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7]


def test_tensorboard_forgets_the_killed_process_too(tmp_path):
    write(tmp_path, range(1, 10))
    # In a process of its own, like a restart: event files of one process differ in a number that
    # TensorBoard sorts as text.
    code = "import sys; from pathlib import Path; from tests.test_metrics import write;"
    code += "write(Path(sys.argv[1]), [6], after=5)"
    python("-c", code, tmp_path)
    assert [step for step, _ in scalars(tmp_path, "mlm_loss")] == [1, 2, 3, 4, 5, 6]


def test_a_killed_process_leaves_all_it_wrote_to_file_and_tensorboard(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from clozeline.train.monitoring.metrics import MetricsLog
log = MetricsLog(Path(sys.argv[1]), start_step=0, max_steps=9, writes=True)
for step in (1, 2, 3):
    log.write(step, {"mlm_loss": 10.0 - step})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert steps(tmp_path) == [1, 2, 3]
    assert scalars(tmp_path, "mlm_loss") == [(1, 9.0), (2, 8.0), (3, 7.0)]


def test_half_a_line_of_a_killed_process_is_removed(tmp_path):
    write(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "mlm_l')
    assert steps(tmp_path) == [1, 2]
    write(tmp_path, [3], after=2)
    assert steps(tmp_path) == [1, 2, 3]


def test_no_lines_yet_is_no_error(tmp_path):
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("line", ["not json", "[]", "{}", '{"step": "one"}', "\0\0"])
def test_a_line_that_is_none_is_named(tmp_path, line):
    write(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    for use in (read_metrics, lambda run: write(run, [3], after=2)):
        with pytest.raises(
            InputError, match=r"line 3 of .*metrics.jsonl cannot be read; remove it"
        ):
            use(tmp_path)


def test_a_start_from_nothing_clears_the_file(tmp_path):
    write(tmp_path, [1, 2, 3])
    write(tmp_path, [1])
    assert steps(tmp_path) == [1]


def test_the_progress_line_counts_from_the_start(tmp_path, capsys):
    write(tmp_path, [20], after=19, nsp_accuracy=0.25)
    progress = capsys.readouterr().err
    assert "20/20" in progress
    assert "mlm_loss=-10.000" in progress
    assert "nsp_accuracy=0.250" in progress


def test_a_look_at_held_out_examples_keeps_what_the_line_shows(tmp_path, capsys):
    with (
        click.Context(click.Command("pretrain")),
        MetricsLog(tmp_path, start_step=0, max_steps=2, writes=True) as log,
    ):
        log.write(1, {"mlm_loss": 2.0, "nsp_accuracy": 0.5})
        log.write(1, {"heldout/mlm_loss": 2.5})
    last = capsys.readouterr().err.splitlines()[-1]
    assert "mlm_loss=2.000, nsp_accuracy=0.500, heldout/mlm_loss=2.500" in last


def test_in_a_log_file_progress_is_whole_lines_of_plain_text(tmp_path, capsys):
    write(tmp_path, range(1, 21))
    progress = capsys.readouterr().err
    assert "\r" not in progress
    assert progress.isascii()
    lines = progress.splitlines()
    assert lines[0].startswith("pretraining: 5% 1/20 [")
    assert lines[-1].startswith("pretraining: 100% 20/20 [")
    assert len(lines) == 2  # nothing between, for it took no 15 seconds


def test_in_a_terminal_progress_is_one_line_that_is_overwritten(tmp_path):
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    code = "import sys; from pathlib import Path; from tests.test_metrics import write;"
    code += "write(Path(sys.argv[1]), range(1, 21))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, stderr=theirs)
    os.close(theirs)
    progress = os.read(ours, 100_000).decode()
    os.close(ours)
    assert progress.count("\n") == 1
    assert "20/20" in progress.strip().split("\r")[-1]


def sick() -> Health:
    return Health(total_steps=20)


def test_what_health_sees_is_a_line_of_its_own_and_said_in_one_life_only(tmp_path, capsys):
    write(tmp_path, range(1, 4), health=sick(), gradient_norm=0.0)
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: step 1: the gradient norm is 0")
    write(tmp_path, range(4, 6), after=3, health=sick(), gradient_norm=0.0)
    assert "warning" not in capsys.readouterr().err


def test_other_processes_write_nothing_and_say_nothing(tmp_path, capsys):
    with MetricsLog(tmp_path, start_step=0, max_steps=2, writes=False) as log:
        log.write(1, {"mlm_loss": 1.0})
        log.warn("not said")
        log.advance()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.1, ""), (5.0, "5 seconds per step; expected end: "), (90.0, "give --for 2h, or a smaller")],
)
def test_the_expected_end_is_said_once_after_a_few_steps(
    seconds, words, monkeypatch, capsys, tmp_path
):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with (
        click.Context(click.Command("pretrain")),
        MetricsLog(tmp_path, start_step=0, max_steps=200, writes=True) as log,
    ):
        for _ in range(5):
            log.advance()
            clock[0] += seconds
        early = capsys.readouterr().err
        for _ in range(30):
            log.advance()
    late = capsys.readouterr().err
    assert words in early
    assert early.count("expected end") == bool(words)
    assert "expected end" not in late
