"""Damaged files and wrong commands: one clear line, the right exit code, nothing half-written."""

import gzip
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.job.beam_graph import _nearest
from tests.faults.mutations import KINDS, mutate
from tests.faults.soak import Sample, sample, table
from tests.faults.trials import TRIALS, make_folder
from tests.support.command import invoke
from tests.support.network_hosts import unshare_command
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
    result = invoke(*command)
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
    source = tmp_path / "a.txt.gz"
    text = (whole / "text.txt").read_bytes() * 300
    source.write_bytes(gzip.compress(text)[:-20])
    line = ["tokenizer", source, "--vocab-size=100", "--out", tmp_path / "t"]
    assert invoke(*line).exit_code == 1
    assert invoke(*line, "--allow-truncated").exit_code == 0


def test_a_misspelt_beam_option_names_the_nearest():
    known = ["--flink_master", "--parallelism"]
    assert _nearest(["--flink_mastr=a:1"], known=known) == " (did you mean --flink_master?)"
    assert _nearest(["--something_else", "x"], known=known) == ""


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
import clozeline.train.cli, clozeline.model.heads, clozeline.train.inference.fill
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


# Two hosts, of which one is killed; `make hosts` does this and more, and prints a table


def test_without_the_tools_for_namespaces_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no `unshare`; install util-linux"):
        unshare_command()


@pytest.mark.slow
def test_a_host_that_was_killed_returns_and_training_ends_with_the_same_bytes(tmp_path):
    try:
        unshare_command()
    except InputError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.faults.hosts", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--only", "kill -9 of host-b$"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, undisturbed, killed = done.stdout.splitlines()
    assert undisturbed.endswith(" | the same |")
    assert 'host-a prints "process 1 on host-b stopped answering" after' in killed
    assert killed.endswith("; host-b starts again, and both continue | the same |")


# The watch over long commands: all processes are counted, and the table has their medians


# A process with 40 MB and 20 open files that starts another of its kind; both end with their input.
CODE = """
import subprocess, sys
held, files = b"x" * 40_000_000, [open("/dev/null") for _ in range(20)]
if sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_files_and_threads_of_all_processes_are_summed(tmp_path):
    import psutil

    (tmp_path / "a").write_bytes(b"1" * 3_000_000)
    line = [sys.executable, "-c", CODE, CODE]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == b"ready\n"
        found = sample(psutil.Process(process.pid), tmp_path)
        process.stdin.close()
    assert found.megabytes > 80
    assert found.files >= 40
    assert found.threads >= 2
    assert found.disk == 3.0


def test_the_table_has_the_medians_of_each_tenth():
    samples = [Sample(100.0 + (i % 3 == 1) * 50, 7, i // 20, i) for i in range(40)]
    lines = table(samples)
    assert len(lines) == 11
    assert lines[1].split() == ["1", "100", "7", "0", "2"]
    assert lines[10].split() == ["10", "100", "7", "1", "38"]
    assert len(table(samples[:3])) == 4
