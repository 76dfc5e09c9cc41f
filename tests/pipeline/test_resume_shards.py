"""A killed `clozeline shards` leaves nothing half done, and the next one goes on from there.

The killer is an audit hook in the job's own processes: it sees every file that is opened or renamed
and sends SIGKILL at the one it was told to wait for. So a job dies at the same place each time,
also between two system calls, and no clock is in it.
"""

import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from clozeline.pipeline.dataset.manifest import MANIFEST
from tests.support.command import output_of
from tests.support.files import times
from tests.support.small_jobs import (
    COMMAND,
    articles,
    in_own_group,
    shard_digests,
    write_parquet,
    write_tokenizer,
)

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
            killed.stdout.read()  # the workers hold its other end: it ends with the last of them
        for unfinished in out.glob(".*.partial"):  # as any kill leaves; no reader opens them
            unfinished.unlink()
        job.assert_finished(out)
