"""A line a step in metrics.jsonl, however often a run restarts; and the warnings about lines."""

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.train.data.batch import LoadedBatch, digest_text
from clozeline.train.engine.distributed import World
from clozeline.train.monitoring.health import Health, find_warnings
from clozeline.train.monitoring.metrics import MetricsLog, read_metrics
from clozeline.train.monitoring.running_metrics import RunningMetrics
from tests.support.files import no_file_longer_than
from tests.support.small_jobs import ROOT


@contextmanager
def log_of(
    run: Path, *, after: int = 0, max_steps: int = 20, health: Health | None = None
) -> Iterator[MetricsLog]:
    """As a command does: called from Python, it shows no progress."""
    with (
        click.Context(click.Command("pretrain")),
        MetricsLog(run, start_step=after, max_steps=max_steps, writes=True, health=health) as log,
    ):
        yield log


def write(run: Path, steps, *, after=0, health=None, **values) -> None:
    with log_of(run, after=after, health=health) as log:
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
    """Also where the file of TensorBoard is the first that is too long."""
    log = MetricsLog(tmp_path, start_step=0, max_steps=None, writes=True)
    complaint = (
        r"the metrics of .* cannot be written \(File too large\); its checkpoints are intact"
    )
    with pytest.raises(JobFailedError, match=complaint), no_file_longer_than(size):
        write_to_the_end(log)
    assert "Traceback" not in capfd.readouterr().err


def test_a_line_holds_the_step_and_the_values_and_tensorboard_the_numbers(tmp_path):
    write(tmp_path, [1, 2, 4], data_digest="0f", nsp_accuracy=0.5)
    line = '{"step": 1, "mlm_loss": 9.0, "data_digest": "0f", "nsp_accuracy": 0.5}\n'
    assert (tmp_path / "metrics.jsonl").read_text().startswith(line)
    assert scalars(tmp_path, "mlm_loss") == [(1, 9.0), (2, 8.0), (4, 6.0)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "data_digest")


def test_a_killed_process_leaves_all_it_wrote_and_nothing_of_the_one_before(tmp_path):
    """In a process of its own, like a restart."""
    write(tmp_path, range(1, 10))
    code = """
import os, signal, sys
from pathlib import Path
from clozeline.train.monitoring.metrics import MetricsLog
log = MetricsLog(Path(sys.argv[1]), start_step=5, max_steps=9, writes=True)
for step in (6, 7):
    log.write(step, {"mlm_loss": 10.0 - step})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    assert scalars(tmp_path, "mlm_loss") == [(step, 10.0 - step) for step in range(1, 8)]


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


def test_the_progress_line_counts_from_the_start_and_keeps_what_it_shows(tmp_path, capsys):
    with log_of(tmp_path, after=19) as log:
        log.write(20, {"mlm_loss": 2.0, "nsp_accuracy": 0.5})
        log.advance()
        log.write(20, {"heldout/mlm_loss": 2.5})
    last = capsys.readouterr().err.splitlines()[-1]
    assert "20/20" in last
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


def test_what_health_sees_is_a_line_of_its_own_and_said_in_one_life_only(tmp_path, capsys):
    easy = {"nsp_pairs": 2000, "nsp_accuracy": 1.0}
    write(tmp_path, range(1, 4), health=Health(total_steps=20), **easy)
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: step 1: NSP accuracy is 100.0%")
    write(tmp_path, range(4, 6), after=3, health=Health(total_steps=20), **easy)
    assert "warning" not in capsys.readouterr().err


# A line of metrics has means over the steps since the line before, on any number of processes
ALONE = World(0, 1, torch.device("cpu"))


def loaded(*, predictions=4, pairs=2, tokens=30, digest=0):
    """Counts of a process's part of a batch; its tensors do not matter here."""
    return LoadedBatch(
        batch=torch.empty(0), next_position=0, num_tokens=tokens, num_predictions=predictions,
        num_pairs=pairs, digest=digest,
    )  # fmt: skip


def summed(*steps, running=None, **costs):
    """After steps of (batch, sums of losses)."""
    running = running or RunningMetrics(ALONE, peak_flops=None)
    for batch, losses in steps:
        running.add(batch, torch.as_tensor(losses), **{"flops": 0, "slots": 64, **costs})
    return running


def line_of(running, last, hits=(0.0, 0.0)):
    return running.begin_line(running.sums(last, torch.tensor(hits)), torch.tensor(0.5))()


def test_a_line_that_is_read_later_has_the_numbers_of_when_it_was_begun():
    """A GPU computes the next steps meanwhile, and their sums belong to the next line."""
    last, later = loaded(predictions=2, pairs=1), loaded(predictions=4, pairs=2)
    running = summed((last, [3.0, 0.5]))
    read = running.begin_line(running.sums(last, torch.zeros(2)), torch.tensor(0.25))
    summed((later, [10.0, 4.0]), running=running)
    line = read()
    assert (line["mlm_loss"], line["nsp_loss"], line["gradient_norm"]) == (1.5, 0.5, 0.25)
    assert line_of(running, later)["mlm_loss"] == 2.5


def test_the_terms_of_processes_add_up_to_the_line_of_one():
    """The digest too, which is larger than a float64 can hold."""
    digests, losses = [2**63 - 1, -(2**63), 123456789012345678], torch.rand(3, 2)
    total, line = torch.zeros(13, dtype=torch.float64), {}
    for rank, digest in enumerate(digests):
        world = World(rank, 3, torch.device("cpu"))
        running = RunningMetrics(world, peak_flops=None)
        part = loaded(digest=digest)
        total += summed((part, losses[rank]), running=running).sums(part, torch.tensor([1.0, 0.0]))
    line = running.begin_line(total, torch.tensor(0.5))()
    assert line["mlm_loss"] == pytest.approx(losses[:, 0].sum().item() / (3 * 4))
    assert line["mlm_accuracy"] == 3 / (3 * 4)
    assert line["nsp_pairs"] == 3 * 2
    assert line["slots_per_second"] == pytest.approx(64 / 30 * line["tokens_per_second"], rel=1e-3)
    assert line["data_digest"] == digest_text(*digests)


def test_mfu_is_logged_where_the_peak_of_the_device_is_known():
    running = RunningMetrics(ALONE, peak_flops=1.0)
    running = summed((loaded(), [0.0, 0.0]), running=running, flops=1e9, slots=60)
    line = line_of(running, loaded(tokens=30))
    assert line["mfu"] > 0
    assert line["mfu_of_tokens"] == pytest.approx(line["mfu"] / 2, rel=1e-6)
    assert line["slots_per_second"] == pytest.approx(2 * line["tokens_per_second"], rel=1e-3)
    assert "mfu" not in line_of(RunningMetrics(ALONE, peak_flops=None), loaded())


# --- Warnings where a fault was planted, and none on a sound run ----------------------------------
UNIGRAM, BATCH, STEPS, EVERY = 7.0, 64, 1000, 10
Change = Callable[[int], dict[str, Any]]  # what the line of a step has instead


def sound_line(step):
    """A line as of a run that learns, with the noise of single batches."""
    noise = math.sin(12.9 * step)
    return {
        "step": step,
        "mlm_loss": 4.5 + 2.8 * math.exp(-step / 250) + 0.12 * noise,
        "nsp_loss": 0.6,
        "nsp_pairs": BATCH,
        "nsp_accuracy": 0.5 + 0.3 * (1 - math.exp(-step / 200)) + 0.05 * noise,
        "learning_rate": 1e-3 * min(step / 60, (STEPS - step) / (STEPS - 60)),
        "gradient_norm": 2.0 + noise,
        "data_wait": 0.6 if step == 1 else 0.002,
    }


def lines(change=lambda step: {}, *, until=STEPS):
    """The first line has the unigram's loss."""
    found = [sound_line(s) | change(s) for s in (1, *range(EVERY, until + 1, EVERY))]
    return [found[0] | {"unigram_loss": UNIGRAM}, *found[1:]]


def warnings_of(found, total_steps=STEPS):
    return find_warnings(list(found), total_steps=total_steps)


def heldout(step, loss):
    return {"step": step, "heldout/mlm_loss": loss}


def after(start, **values):
    return lambda step: values if step >= start else {}


def only_at(when, **values):
    return lambda step: values if step == when else {}


def noisy(level, name="mlm_loss"):
    return lambda step: {name: level + 0.05 * math.sin(12.9 * step)}


FAULTS: dict[str, tuple[Change, int, str]] = {  # cause: fault, step it is told, words
    "diverging": (lambda s: {"mlm_loss": 7.3 + s / 250}, 120, "above the 7.304 it started from"),
    "not_falling": (noisy(9.2), 190, "it does not fall"),
    "parked_at_unigram": (noisy(UNIGRAM), 200, "counting tokens alone gives 7.000"),
    "nsp_at_chance": (noisy(0.5, "nsp_accuracy"), 300, "no better than chance"),
    "nsp_too_easy": (after(300, nsp_accuracy=1.0), 490, "100.0% over 1,280 pairs"),
    "slow_loader": (after(500, data_wait=0.23), 520, "23% of the time the model waits"),
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_planted_fault_is_told_once_with_its_number_and_what_to_do(cause):
    change, step, words = FAULTS[cause]
    found = [warning for warning in warnings_of(lines(change)) if warning.cause == cause]
    assert [warning.step for warning in found] == [step]
    line = str(found[0])
    assert words in line
    assert line.startswith(f"step {step}: ")
    assert line.endswith(".")
    assert "\n" not in line


@pytest.mark.parametrize(
    "found",
    [
        lines(),
        lines()[1:],  # the first line was not kept
        [{name: x for name, x in line.items() if name[:3] != "nsp"} for line in lines()],
        lines(only_at(500, data_wait=0.9)),  # one slow line
        lines(after(0, nsp_accuracy=0.54, nsp_pairs=640)),  # of 12,800 pairs it is not by chance
        lines(after(0, nsp_accuracy=1.0, nsp_pairs=8), until=200),  # 160 pairs prove nothing
    ],
    ids=["whole", "later", "no pairs", "slow line", "learns pairs", "few pairs"],
)
def test_a_sound_run_has_no_warning(found):
    looks = [heldout(step, 4.6 + 2.5 * math.exp(-step / 250)) for step in range(100, 1001, 100)]
    assert warnings_of(sorted([*found, *looks], key=lambda line: line["step"])) == []
    assert warnings_of(found) == []


@pytest.mark.parametrize("cause", FAULTS)
def test_the_first_lines_of_a_run_prove_nothing_yet(cause):
    change = FAULTS[cause][0]
    assert warnings_of(lines(lambda step: change(step) | change(600), until=40)) == []


def test_a_cause_is_told_again_only_after_it_had_gone():
    def slow_from(*starts):
        return lines(lambda s: {"data_wait": 0.5} if any(0 <= s - x <= 40 for x in starts) else {})

    assert [warning.step for warning in warnings_of(slow_from(500, 600))] == [520]
    assert [warning.step for warning in warnings_of(slow_from(500, 800))] == [520, 820]


def with_looks(*losses, change=lambda step: {}):
    looks = [heldout(200 * (i + 1), loss) for i, loss in enumerate(losses)]
    ordered = sorted([*lines(change), *looks], key=lambda line: line["step"])
    return warnings_of(ordered)


def test_held_out_loss_that_rises_while_training_goes_on_falling_is_overfitting():
    found = with_looks(5.5, 5.2, 5.4, 5.6)
    assert [(warning.cause, warning.step) for warning in found] == [("overfitting", 800)]
    assert "rose from 5.200 (step 400) to 5.600" in found[0].words


def test_held_out_loss_that_wavers_or_rises_with_the_training_loss_is_not():
    assert with_looks(5.5, 5.2, 5.25, 5.22) == []
    assert with_looks(5.5, 5.2, 5.21, 5.22) == []
    rising = with_looks(5.0, 5.2, 5.4, 5.6, change=lambda s: {"mlm_loss": 5.0 + s / 1000})
    assert [warning for warning in rising if warning.cause == "overfitting"] == []
