"""A killed `clozeline shards` leaves nothing half done, and the next one goes on from there.

The killer is an audit hook in the job's own processes: it sees every file that is opened or renamed
and sends SIGKILL at the one it was told to wait for. So a job dies at the same place each time,
also between two system calls, and no clock is in it.
"""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from clozeline.pipeline.common.errors import JobFailedError
from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.job import fork_server as server_module
from clozeline.pipeline.job.fork_server import PROGRAM
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.job.workers import Worker, run_in_workers
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import TEXT, work
from tests.support.command import output_of
from tests.support.files import times
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import (
    COMMAND,
    articles,
    clozeline_ok,
    in_own_group,
    shard_digests,
    write_parquet,
    write_tokenizer,
)
from tests.support.waiting import wait_until

# Python imports a module of this name in every process, so also in the workers that Beam starts.
# The job leads its process group; a worker that has killed it stops until it is told to go on.
SITECUSTOMIZE = """
import os, re, signal, sys

wanted, pattern, number = os.environ["MOMENT"].split()
seen = 0

def kill_the_job(event, arguments):
    global seen
    if event == wanted and re.search(pattern, str(arguments[event == "os.rename"])):
        seen += 1
        if seen == int(number):
            os.kill(os.getpgrp(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(kill_the_job)
"""

# An event (what is opened, what a file is renamed to) and how often it has been met by then.
CACHE_FILE_HAS_NO_NAME = r"os.rename \.tokens$ 1"
SHARD_IS_BEGUN = r"open -of-\d+\.arrow\.[0-9a-f]+\.partial$ 1"
CHAIN = (
    r"os.rename \.tokens$ 5",
    r"open train-.*\.partial$ 1",
    r"os.rename -of-00006\.arrow$ 2",
    r"os.rename \.shard\.json$ 1",  # the shard has its name, its record has not
    rf"os.rename {MANIFEST}$ 1",
)

Identities = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Job:
    """A job of 12 blocks and 7 shards, and the data set it makes undisturbed."""

    folder: Path
    source: Path
    tokenizer: Path
    finished: Path

    def line(self, out, *options):
        """The arguments of the job."""
        fixed = ("--num-shards=6", "--validation=0.1", "--block-bytes=10000")
        line = ("shards", self.source, "--tokenizer", self.tokenizer, "--out", out)
        return [str(part) for part in (*line, *fixed, *options)]

    @contextmanager
    def killed_at(self, moment, out, *options):
        """The job, killed; its workers, if it has any, are stopped until the block ends."""
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "MOMENT": moment}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        line = (*COMMAND, *self.line(out, *options))
        with in_own_group(*line, env=environment, **pipes) as process:
            assert process.wait() == -signal.SIGKILL
            assert not (out / MANIFEST).exists()
            assert shard_digests(out).items() <= shard_digests(self.finished).items()
            yield process

    def assert_finished(self, out):
        """The data set is that of the undisturbed job, and nothing else is in the folder."""
        assert shard_digests(out) == shard_digests(self.finished)
        assert (out / MANIFEST).read_bytes() == (self.finished / MANIFEST).read_bytes()
        assert {path.name for path in out.iterdir()} == {x.name for x in self.finished.iterdir()}


def counts(history):
    return [len(files) for files in history]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    texts = articles(240)
    source = write_parquet(folder / "articles.parquet", texts)
    job = Job(folder, source, write_tokenizer(folder / "tokenizer", texts), folder / "finished")
    output_of(*job.line(job.finished, "--workers=1"))
    assert len(shard_digests(job.finished)) == 7
    return job


def test_a_job_killed_again_and_again_loses_only_what_was_in_flight(job, tmp_path):
    out, kept = tmp_path / "out", tmp_path / "cache"
    options = ("--workers=1", "--token-cache", kept)
    cached: list[Identities] = []
    shards: list[Identities] = []
    for moment in CHAIN:
        with job.killed_at(moment, out, *options):
            cached.append(times(kept, "*.tokens"))
            shards.append(times(out, "*-of-*.arrow"))
    # What a job had finished, the next one left alone and added to.
    assert counts(cached) == [4, 12, 12, 12, 12]
    assert all(before.items() <= after.items() for before, after in pairwise(cached))
    # A shard without a record is made again: the second one of the fourth job.
    assert counts(shards) == [0, 0, 1, 2, 7]
    assert shards[2].items() <= shards[3].items()
    assert shards[2].items() <= shards[4].items()

    output_of(*job.line(out, *options))
    assert times(kept, "*.tokens") == cached[-1]
    assert times(out, "*-of-*.arrow") == shards[-1]
    job.assert_finished(out)


def has_ended(group):
    """Whether no process of a group runs any more."""
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def test_workers_that_outlive_their_job_do_no_harm(job, tmp_path):
    """Those of two killed jobs wake up when another process has finished the data set."""
    out = tmp_path / "out"
    with (
        job.killed_at(CACHE_FILE_HAS_NO_NAME, out, "--workers=2") as first,
        job.killed_at(SHARD_IS_BEGUN, out, "--workers=2") as second,
    ):
        output_of(*job.line(out, "--workers=1"))
        job.assert_finished(out)
        for killed in (first, second):
            os.killpg(killed.pid, signal.SIGCONT)
            wait_until(partial(has_ended, killed.pid), "end of its workers", seconds=60)
        for unfinished in out.glob(".*.partial"):  # as any kill leaves; no reader opens them
            unfinished.unlink()
        job.assert_finished(out)


# --- Workers of this machine: a dead one fails the job, and none outlives it ----------------------


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
    every = psutil.Process().children(recursive=True)
    lines = {child.pid: child.as_dict(["cmdline"], ad_value=[])["cmdline"] for child in every}
    running = [child for child in every if PROGRAM in lines[child.pid]]
    return [child for child in running if child.ppid() != os.getpid()]  # not what forked them


def test_a_worker_that_is_killed_fails_the_job(worker):
    assert [child.pid for child in workers()] == [worker.pid]
    os.kill(worker.pid, signal.SIGKILL)  # as the kernel does when memory runs out
    worker.send("an item")
    with pytest.raises(RuntimeError, match=r"worker process exited .* \(killed by signal 9\)"):
        worker.receive()


@pytest.fixture
def no_fork_server(monkeypatch):
    """The next worker needs a new process that forks it, and so does the one after the test."""
    monkeypatch.setattr(server_module, "_FORK_SERVERS", [])


def test_a_worker_that_never_starts_fails_the_job(tmp_path, monkeypatch, no_fork_server):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(JobFailedError, match=r"worker process exited .* \(exit code 1\)"):
        shards(tmp_path, options=replace(OPTIONS, workers=2))


def test_workers_end_and_the_next_are_new_when_the_process_that_forks_them_is_killed(
    no_fork_server,
):
    with Worker() as worker:
        (running,) = workers()
        forking = psutil.Process(running.ppid())
        forking.kill()
        forking.wait(60)  # a kill takes a moment
    running.wait(60)
    with Worker() as another:
        assert another.pid != worker.pid


def test_a_worker_runs_in_the_folder_of_its_job(tmp_path, monkeypatch, worker):
    monkeypatch.chdir(tmp_path)
    with Worker() as another:
        process = psutil.Process(another.pid)
        wait_until(lambda: process.cwd() == str(tmp_path), "worker in the folder", seconds=60)
        assert psutil.Process(worker.pid).cwd() != str(tmp_path)


def test_a_worker_ends_at_once_when_the_process_that_started_it_does(worker):
    process = psutil.Process(worker.pid)
    worker.connection.close()  # as the kernel does when the job is killed
    assert worker._fork_server.wait(worker.pid) == 1
    assert not process.is_running()


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
    assert "InputError" in raised.value.__notes__[0]
    assert workers() == []
    assert not list(context.out_dir.glob("*.arrow"))


# A worker or the scheduler of a Dask cluster is killed: the same bytes, at once or the next time
SECONDS = 120.0
RUNNER = "--runner=DaskRunner"


@pytest.fixture
def cluster(tmp_path):
    """The scheduler's address, and the process group of the scheduler and of one worker."""
    pytest.importorskip("distributed", reason="needs clozeline[dask]")
    file = tmp_path / "scheduler.json"
    scheduler = ("scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard")
    worker = ("worker", "--nthreads=1", "--no-dashboard", "--no-nanny", "--death-timeout=30")
    groups = {}
    with ExitStack() as running:
        for name, part in {"scheduler": scheduler, "worker": worker, "another": worker}.items():
            line = [sys.executable, "-m", "dask", *part, "--scheduler-file", file]
            process = in_own_group(*line, stderr=subprocess.DEVNULL)
            groups[name] = running.enter_context(process).pid
        yield str(file), groups


@pytest.mark.parametrize("lost", ["worker", "scheduler"])
@pytest.mark.slow
def test_a_job_survives_a_worker_and_goes_on_after_a_scheduler(cluster, lost, tmp_path):
    file, groups = cluster
    texts = articles(240)
    source = write_parquet(tmp_path / "a.parquet", texts)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    sizes = ("--num-shards=12", "--validation=0.1", "--block-bytes=10000", "--deduplicate=near")
    line = ["shards", source, "--tokenizer", tokenizer, *sizes]
    clozeline_ok(*line, "--out", tmp_path / "finished", "--workers=1")

    out, cache = tmp_path / "out", tmp_path / "cache"
    line += ["--out", out, "--token-cache", cache]
    dask = ("--", RUNNER, f"--dask_scheduler_file={file}", "--dask_partition_size=1")
    with in_own_group(*COMMAND, *line, *dask, stderr=subprocess.PIPE, text=True) as job:
        wait_until(lambda: len(list(cache.glob("*.tokens"))) > 1, "two blocks", seconds=SECONDS)
        os.killpg(groups[lost], signal.SIGKILL)  # in the middle of the work
        _, said = job.communicate(timeout=SECONDS)
    if lost == "scheduler":
        assert job.returncode == 1
        assert said.splitlines()[-1] == (
            f"Error: the job failed: the runner stopped before the last step (details in "
            f"{out}/job.log). Finished work is kept; rerun the command to continue."
        )
        assert "Traceback" not in said
        clozeline_ok(*line)
    else:
        assert job.returncode == 0, said
    assert shard_digests(out) == shard_digests(tmp_path / "finished")
