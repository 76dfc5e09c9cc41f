"""`clozeline shards` on two worker processes, killed at random moments.

The moments are drawn once, over the time that the undisturbed job takes. An audit hook in the job's
own processes notes which token cache files are begun, so that tokenized blocks are counted and not
guessed.
"""

import json
import os
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import pytest

from clozeline.pipeline.dataset.manifest import MANIFEST
from tests.support.small_jobs import (
    COMMAND,
    ROOT,
    articles,
    clozeline_ok,
    identities,
    no_survivors,
    shard_digests,
    write_tokenizer,
)

WORKERS = 2

# Python imports a module of this name in every process, so also in the workers that Beam starts.
SITECUSTOMIZE = r"""
import os, re, sys

def note_what_is_begun(event, arguments):
    if event == "open" and re.search(r"\.tokens\.[0-9a-f]+\.partial$", str(arguments[0])):
        diary = os.open(os.environ["DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(diary, (os.path.basename(arguments[0]) + "\n").encode())
        os.close(diary)

sys.addaudithook(note_what_is_begun)
"""


@dataclass(frozen=True)
class Seen:
    """What a job has finished so far, and the blocks it has begun until then."""

    cached: dict[str, tuple[int, int]]  # name: inode and time of change
    shards: dict[str, tuple[int, int]]  # those that have a record
    begun: list[str]  # the cache file of each block, once for each time it was begun


@dataclass(frozen=True)
class Job:
    """A job of some 30 blocks and 40 shards in a folder of its own."""

    folder: Path
    tools: Path  # tokenizer, sitecustomize

    @property
    def out(self):
        return self.folder / "out"

    @property
    def cache(self):
        return self.folder / "cache"

    def start(self):
        """A life of the job, at the head of a process group; its workers are in it."""
        path = os.pathsep.join([str(self.tools), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [*COMMAND, *self.line()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "DIARY": str(self.folder / "diary")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def line(self):
        """The arguments of the job."""
        size = ("--num-shards=40", "--validation=0.1", "--block-bytes=100000", "--dupe-factor=4")
        folders = ("--tokenizer", self.tools / "tokenizer", "--out", self.out)
        options = (*size, "--token-cache", self.cache, f"--workers={WORKERS}")
        line = ("shards", "sample:articles?size=3MB", *folders, *options)
        return [str(part) for part in line]

    def is_killed_after(self, seconds):
        """Whether a life was cut short by then; else the data set was finished."""
        with self.start() as process, no_survivors(process.pid):
            try:
                assert process.wait(timeout=seconds) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
        return not (self.out / MANIFEST).exists()

    def look(self):
        """What there is after a life."""
        records = [json.loads(path.read_bytes()) for path in self.cache.glob("*.shard.json")]
        recorded = [self.out / record["entry"]["name"] for record in records]
        diary = self.folder / "diary"
        partial = diary.read_text().split() if diary.exists() else []
        return Seen(
            identities(list(self.cache.glob("*.tokens"))),
            identities(recorded),
            [re.sub(r"^\.|\.[0-9a-f]+\.partial$", "", name) for name in partial],
        )


def assert_same_bytes_and_little_lost(lives, job, undisturbed):
    """Each life did what the lives before it had not finished, and nothing else."""
    assert shard_digests(job.out) == shard_digests(undisturbed.out)
    assert (job.out / MANIFEST).read_bytes() == (undisturbed.out / MANIFEST).read_bytes()
    for before, after in pairwise([Seen({}, {}, []), *lives]):
        assert before.cached.items() <= after.cached.items()
        assert before.shards.items() <= after.shards.items()
        begun = after.begun[len(before.begun) :]
        assert not before.cached.keys() & set(begun)
        assert len(begun) <= len(after.cached) - len(before.cached) + WORKERS
    blocks = len(undisturbed.look().cached)
    assert blocks <= len(lives[-1].begun) <= blocks + WORKERS * (len(lives) - 1)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    write_tokenizer(folder / "tokenizer", articles(200))
    return folder


@pytest.fixture(scope="module")
def undisturbed(tools, tmp_path_factory):
    """The job as it ends where nobody kills it, and the seconds it takes."""
    job = Job(tmp_path_factory.mktemp("undisturbed"), tools)
    started = time.monotonic()
    clozeline_ok(*job.line())
    seconds = time.monotonic() - started
    assert len(job.look().cached) > 20
    assert len(job.look().shards) > 20
    return job, seconds


def moments(number, seconds):
    """Random moments, one in each of equal parts of the time, in random order."""
    draw = random.Random(11)
    parts = [seconds * (part + draw.random()) / number for part in range(number)]
    return draw.sample(parts, number)


@pytest.mark.slow
def test_a_job_killed_at_ten_random_moments_loses_only_what_was_in_flight(
    undisturbed, tools, tmp_path
):
    finished, seconds = undisturbed
    jobs = (Job(tmp_path / str(number), tools) for number in count())
    job, lives = next(jobs), []
    for moment in moments(10, seconds):
        while not job.is_killed_after(moment):  # it was done by then: another, sooner
            assert_same_bytes_and_little_lost([*lives, job.look()], job, finished)
            job, lives, moment = next(jobs), [], moment * 0.7
        lives.append(job.look())
        assert shard_digests(job.out).items() <= shard_digests(finished.out).items()
    assert not job.is_killed_after(None)
    assert_same_bytes_and_little_lost([*lives, job.look()], job, finished)
