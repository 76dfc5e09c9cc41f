"""Damaged files and wrong commands: one clear line, the right exit code, nothing half-written."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from clozeline.pipeline.job.beam_graph import _nearest
from clozeline.pipeline.job.beam_workers import WORKER
from clozeline.train.cli import main
from tests.faults.mutations import KINDS, mutate
from tests.faults.trials import TRIALS, make_folder
from tests.support.small_jobs import ROOT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    make_folder(folder)
    return folder


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_fault_is_named_in_one_line(trial, whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "copy")
    trial.harm(folder)
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    command = [part.replace("{nl}", "\n") for part in trial.command.split(" ")]
    result = CliRunner().invoke(main, command)
    assert isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in re.split(r"[\r\n]+", result.stderr) if line]
    others = re.compile(r"Usage:|Try |.*\[\d\d:\d\d")  # the last is a progress bar
    lines = [line for line in lines if not others.match(line)]
    assert len(lines) == 1, lines
    assert lines[0].startswith("Error: ")
    assert trial.line in lines[0]
    assert result.exit_code == trial.exit_code
    assert {path.name for path in folder.iterdir()} - before <= {"c"}


def test_an_allowed_cut_source_is_learned_from(whole, tmp_path):
    import gzip

    source = tmp_path / "a.txt.gz"
    text = (whole / "text.txt").read_bytes() * 300
    source.write_bytes(gzip.compress(text)[:-20])
    line = ["tokenizer", str(source), "--vocab-size=100", "--out", str(tmp_path / "t")]
    assert CliRunner().invoke(main, line).exit_code == 1
    assert CliRunner().invoke(main, [*line, "--allow-truncated"]).exit_code == 0


def test_a_misspelt_beam_option_names_the_nearest():
    known = ["--flink_master", "--parallelism"]
    assert _nearest(["--flink_mastr=a:1"], known=known) == " (did you mean --flink_master?)"
    assert _nearest(["--something_else", "x"], known=known) == ""


def test_a_worker_ends_with_the_job_that_started_it():
    worker = subprocess.Popen([sys.executable, WORKER], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.close()  # as the kernel does when the job is killed
    assert worker.wait() == 1


def test_an_interrupt_during_the_imports_is_no_traceback():
    code = (
        "import sys, builtins\n"
        "real = builtins.__import__\n"
        "def stop(name, *rest):\n"
        "    if name == 'click':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = stop\n"
        "from clozeline.__main__ import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"")


LIMITED = """
import resource, runpy, sys
import clozeline.train.cli, torch, model.heads, train.fill
most = int(sys.argv.pop(1))
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if "VmSize" in line)
resource.setrlimit(resource.RLIMIT_AS, (used + most, used + most))
runpy.run_module("clozeline", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_too_little_memory_is_named(whole):
    line = [sys.executable, "-c", LIMITED, "100000", "fill", str(whole / "run"), "[MASK]"]
    done = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "memory" in done.stderr.splitlines()[-1].lower()


def test_a_mutation_is_a_function_of_its_seed_and_touches_what_it_says():
    data = random.Random(1).randbytes(500)
    kinds = set()
    for seed in range(400):
        mutation = mutate(data, random.Random(seed))
        assert mutation == mutate(data, random.Random(seed))
        assert mutation.data != data
        start, after = mutation.start, len(data) - mutation.stop
        assert mutation.data[:start] == data[:start]
        assert mutation.data[len(mutation.data) - after :] == data[len(data) - after :]
        kinds.add(mutation.kind)
    assert kinds == set(KINDS)


@pytest.mark.slow
def test_five_hundred_mutations_are_named_or_harmless(tmp_path):
    line = (sys.executable, "-m", "tests.faults.torture", "--trials=500", "--seed=1")
    done = subprocess.run(
        [*line, f"--out={tmp_path}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "500 tried: " in done.stdout.splitlines()[-1]
