"""Training killed ten times at random moments is the training that was never killed, bit for bit.

So is one that is asked to stop.

The moments are drawn once: so many steps after the start of a life, and then a part of the time
that a step or a checkpoint takes. Checkpoints follow each other closely, so some are hit in the
making. Dropout is on, masks are drawn anew in each epoch, and the learning rate changes with each
step; in one of the two runs the data set and the masking rate change three times, too.
"""

import json
import os
import platform
import random
import signal
import subprocess

import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import WORKSPACE, deterministic_kernels, resolve_compile
from tests.support.small_data import write_data_set
from tests.support.small_jobs import COMMAND, in_own_group, python
from tests.support.small_training import assert_same_run, command_line, numbers, preset_of, train
from tests.support.waiting import free_port
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
        options |= {"phase": folders, "masked_lm_prob": 0.4}
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


# --- A process that dies or hangs ends the others, which name it ----------------------------------
KEEPS_STORE = "the rendezvous store, on the machine of process 0, stopped answering ("

NAMED = f"process 1 on {platform.node()} stopped answering ("
#: How it is lost, seconds of patience, the lost rank, what the other one does, and what it says.
LOST = [
    ("SIGKILL", 60, 1, "sums", NAMED),
    ("SIGSTOP", 2, 1, "sums", NAMED),
    ("SIGSTOP", 2, 0, "sums", KEEPS_STORE),  # its kernel still accepts connections
    ("SIGKILL", 3, 1, "waits", f"{NAMED}no heartbeat for 2 s)"),
    ("SIGSTOP", 3, 1, "waits", f"{NAMED}no heartbeat for 2 s)"),
    ("SIGSTOP", 3, 0, "waits", f"{KEEPS_STORE}no heartbeat for 2 s)"),
]


def test_the_missing_process_is_named_with_its_host():
    """Where a collective fails, and where it never ends, as NCCL's do not."""
    pairs = [f"{','.join(map(str, words))},{free_port()}" for *words, _ in LOST]
    others = json.loads(python("tests/support/lost_rank.py", *pairs))
    for (*_, start), (code, said) in zip(LOST, others, strict=True):
        assert code == 1
        (line,) = said.splitlines()
        assert line.startswith(f"Error: {start}")
        assert line.endswith("with --resume continues from the newest checkpoint.")


# --- `--deterministic`: torch's switch is on while a run trains, and two runs are the same --------


def test_two_runs_are_the_same_bits_with_the_switch_on(small_folder, tmp_path):
    seen = set()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda *_: seen.add(torch.are_deterministic_algorithms_enabled())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(WORKSPACE[0], raising=False)
        for name in ("one", "two"):
            train(small_folder, tmp_path / name, deterministic=True, max_steps=2, save_every=2)
        assert os.environ[WORKSPACE[0]] == WORKSPACE[1]
    hook.remove()
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert seen == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_kernel_that_is_not_deterministic_is_one_line():
    x, places = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    line = r"^--deterministic: .*put_.*Leave the option out"
    with pytest.raises(InputError, match=line), deterministic_kernels(True):
        x.put_(places, torch.ones(2), accumulate=False)
    with deterministic_kernels(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="size"), deterministic_kernels(True):
        torch.ones(2) @ torch.ones(3)


# --- Without a compiler training still runs -------------------------------------------------------
CPU, GPU = World(0, 1, torch.device("cpu")), World(0, 1, torch.device("cuda", 0))


def test_without_a_compiler_a_warning_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without any commands
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    assert resolve_compile(True, CPU) is False
    assert capsys.readouterr().err == (
        "warning: torch.compile needs a compiler (g++ or clang++), which is not installed; "
        "training runs without it, more slowly. Install it, or give --no-compile.\n"
    )
    assert resolve_compile(True, World(1, 2, torch.device("cpu"))) is False
    assert resolve_compile(None, GPU) is False
    assert capsys.readouterr().err.count("warning") == 1  # only rank 0 of the two
