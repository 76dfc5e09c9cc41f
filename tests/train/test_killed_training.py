"""Training killed ten times at random moments is the training that was never killed, bit for bit.

So is one that is asked to stop.

The moments are drawn once: so many steps after the start of a life, and then a part of the time
that a step or a checkpoint takes. Checkpoints follow each other closely, so some are hit in the
making. Dropout is on, masks are drawn anew in each epoch, and the learning rate changes with each
step; in one of the two runs the data set and the masking rate change three times, too.
"""

import os
import random
import signal
import subprocess

import pytest

from clozeline.pipeline.common.errors import STOPPED
from clozeline.train.artifacts.checkpoint import latest_checkpoint, read_state
from tests.support.small_data import write_data_set
from tests.support.small_jobs import COMMAND, in_own_group
from tests.support.small_training import assert_same_run, command_line, numbers, preset_of, train
from tests.train.test_phases import SHORT

KILLS = 10
OPTIONS = {"max_steps": 300, "save_every": 7, "eval_every": 21, "keep": 2}


def lines_of(run):
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def is_killed(shards, run, options, *, after, seconds):
    """Whether a life was cut short: `after` so many more lines of metrics, and some time."""
    line = (*COMMAND, *command_line(shards, run, "--resume", **options))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    wanted = lines_of(run) + after
    with in_own_group(*line, **quiet) as process:
        while lines_of(run) < wanted and process.poll() is None:
            wait(process, 0.002)
        wait(process, seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


def wait(process, seconds):
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


@pytest.mark.slow
@pytest.mark.parametrize("has_phases", [False, True], ids=["plain", "phases"])
def test_ten_kills_leave_no_trace_in_the_loss_curve(has_phases, small_folder, tmp_path):
    options = dict(OPTIONS)
    if has_phases:
        short = write_data_set(tmp_path / "short", train=(40, 31), config=SHORT)
        folders = (f"{short}@0.1", f"{small_folder}@0.1", f"{short}@0.1")
        options |= {"phase": folders, "masked_lm_prob": "0.4@0.25:0.15"}
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(small_folder, whole, model=preset_of(small_folder), **options)
    draws = random.Random(0)
    for _ in range(KILLS):
        after, seconds = draws.randint(1, 20), draws.uniform(0, 0.05)
        assert is_killed(small_folder, run, options, after=after, seconds=seconds)
    assert 0 < lines_of(run) < lines_of(whole)
    train(small_folder, run, model=preset_of(small_folder), resume=True, **options)
    assert_same_run(run, whole)
    steps = [line["step"] for line in numbers(run) if "mlm_loss" in line]
    assert steps == list(range(1, 301))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_a_process_saves_where_it_stands(how, small_folder, tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    line = (*COMMAND, *command_line(small_folder, run, **OPTIONS))
    with in_own_group(*line, stdout=subprocess.PIPE) as process:
        while lines_of(run) < 3 and process.poll() is None:
            wait(process, 0.002)
        os.killpg(process.pid, how)
        printed, _ = process.communicate()
    assert process.returncode == STOPPED == 75
    step = read_state(latest_checkpoint(run)).step
    assert printed.decode() == (
        f"Stopped at step {step} of 300; checkpoint saved. Add `--resume` to continue.\n"
    )
    for out in (run, whole):
        train(small_folder, out, model=preset_of(small_folder), resume=out == run, **OPTIONS)
    assert_same_run(run, whole)
