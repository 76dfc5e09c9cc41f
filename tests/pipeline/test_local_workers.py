"""Workers of this machine: a dead one fails the job, and none outlives it."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from clozeline.pipeline.common.errors import JobFailedError
from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.job.workers import PROGRAM, Worker, run_in_workers
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import TEXT, work
from tests.support.small import PUNKT, small_tokenizer


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="asks Linux for cores")
def test_by_default_there_is_a_worker_for_each_core_that_the_process_may_use():
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    code += "from clozeline.pipeline.job.options import JobOptions; print(JobOptions().num_workers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert JobOptions(workers=3).num_workers == 3


@pytest.fixture
def worker():
    """A worker that waits for its job."""
    with Worker() as worker:
        yield worker


def workers():
    """The workers that this process has started."""
    every = psutil.Process().children()  # one that ended unwaited for, of another test, has no line
    lines = [child.as_dict(["cmdline"], ad_value=[])["cmdline"] for child in every]
    return [line for line in lines if PROGRAM in line]


def test_a_worker_that_is_killed_fails_the_job(worker):
    assert len(workers()) == 1
    os.kill(worker._process.pid, signal.SIGKILL)  # as the kernel does when memory runs out
    worker.send("an item")
    with pytest.raises(RuntimeError, match=r"worker process exited .* \(killed by signal 9\)"):
        worker.receive()


def test_a_worker_that_dies_before_it_has_its_job_fails_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(JobFailedError, match=r"worker process exited .* \(exit code 1\)"):
        shards(tmp_path, options=replace(OPTIONS, workers=2))


def test_a_worker_ends_at_once_when_the_process_that_started_it_does(worker):
    worker.connection.close()  # as the kernel does when the job is killed
    assert worker._process.wait(60) == 1


def test_a_script_needs_no_guard_and_runs_once(tmp_path):
    small_tokenizer(PUNKT).save(tmp_path / "tokenizer")
    (tmp_path / "corpus.txt").write_text(TEXT)
    (tmp_path / "script.py").write_text(
        "from clozeline import JobOptions, build_shards\n"
        "print('once')\n"
        "build_shards('corpus.txt', tokenizer='tokenizer', out='out',\n"
        "             options=JobOptions(workers=2, block_bytes=8000))\n"
    )
    line = [sys.executable, "script.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "once\n"
    assert (tmp_path / "out" / MANIFEST).exists()


def test_what_is_wrong_with_a_block_is_named_and_the_other_worker_ends_at_once(tmp_path):
    blocks, context = work(tmp_path, block_bytes=2000)
    assert len(blocks) > 3
    blocks[0] = replace(blocks[0], path=str(tmp_path / "gone.txt"))
    with pytest.raises(RuntimeError, match=r"gone\.txt.* \[while running 'Tokenize'\]") as raised:
        run_in_workers(context.reading(blocks), workers=2)
    assert "InputError" in str(raised.value.__cause__)
    assert workers() == []
    assert not list(context.out_dir.glob("*.arrow"))
