"""Tasks of a job: any number, in any order, twice, killed: the same bytes, or exit code 75."""

import gzip
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import pytest

from clozeline.pipeline.common import folder_lock
from clozeline.pipeline.common.errors import STOPPED, InputError, UnfinishedError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.job.options import JobOptions, Task
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_resume_shards import job
from tests.pipeline.test_steps import CONFIG, TEXT
from tests.support.command import refused
from tests.support.files import times
from tests.support.small_jobs import COMMAND, in_own_group, shard_digests

__all__ = ["job"]  # the fixture


def task(text, **values):
    """Options of a task that does not wait."""
    return JobOptions(block_bytes=2000, task=text, wait="0s", **values)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job without tasks."""
    folder = tmp_path_factory.mktemp("whole")
    shards(folder, options=replace(OPTIONS, block_bytes=2000))
    return folder


@pytest.fixture
def work(whole, tmp_path):
    """The same source and tokenizer, and no data set."""
    return shutil.copytree(whole, tmp_path / "work", ignore=shutil.ignore_patterns("out"))


def until_finished(folder, tasks, out=None, **values):
    """Run the tasks again and again, each alone."""
    for number in range(3 * len(tasks)):
        with suppress(UnfinishedError):
            options = task(tasks[number % len(tasks)], **values)
            return shards(folder, options=options, **({"out": out} if out else {}))
    raise AssertionError("never finished")


def assert_same(out, finished):
    """The same data set, and nothing else in the folder."""
    assert shard_digests(out) == shard_digests(finished)
    assert (out / MANIFEST).read_bytes() == (finished / MANIFEST).read_bytes()
    names = {path.name for path in finished.iterdir()} - {"job.log"}
    assert {path.name for path in out.iterdir()} == names


@pytest.mark.parametrize(
    "tasks",
    ["0/1", "1/2 0/2", "3/4 0/4 3/4 1/4 2/4 1/4", "0/2 2/3 1/2 5/7"],
    ids=["one", "two", "four, some twice", "numbers can be mixed"],
)
def test_any_number_of_tasks_in_any_order_gives_the_bytes_of_one_job(tasks, work, whole):
    until_finished(work, tasks.split())
    assert_same(work / "out", whole / "out")
    before = times(work / "out", "*")
    assert shards(work, options=task(tasks[:3]))[1] is False  # once more
    assert times(work / "out", "*") == before


def test_a_missing_task_is_named_in_one_line_with_exit_code_75(work, whole):
    fixed = ("--num-shards=3", "--validation=0.2", "--max-seq-length=32", "--min-characters=4")
    folders = ("--tokenizer", work / "tokenizer", "--out", work / "out")
    line = ("shards", work / "corpus.txt", *folders, *fixed, "--block-bytes=2000", "--wait=0s")
    assert "are those of task 1/3, 2/3." in refused(*line, "--task=0/3", code=STOPPED)
    assert refused(*line, "--task=2/3", code=STOPPED) == (
        "7 of 11 blocks tokenized; the others are those of task 1/3. Run what is missing, and this "
        "task again."
    )
    assert not (work / "out" / MANIFEST).exists()
    until_finished(work, ["0/1"])  # a task of another number does it all
    assert_same(work / "out", whole / "out")


def test_a_shard_of_another_job_is_not_taken_for_one_of_this(work, whole):
    kept = {"token_cache": work / "cache"}
    shards(work, options=task("0/1", **kept))  # its records are in the kept token cache
    for config in (replace(CONFIG, seed=1), CONFIG):
        (work / "out" / MANIFEST).unlink()  # as if the job had not come to its end
        with pytest.raises(UnfinishedError, match="shards built; the others are those of task 0/2"):
            shards(work, config, task("1/2", **kept))
        shards(work, config, task("0/2", **kept))
    assert_same(work / "out", whole / "out")


def test_what_is_lost_or_damaged_is_made_again_and_nothing_overwritten(work, whole):
    kept = {"token_cache": work / "cache"}
    shards(work, options=task("0/1", **kept))
    (work / "out" / "train-00001-of-00003.arrow").unlink()
    (work / "out" / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tasks build what is missing: remove damaged files"):
        task("0/1", overwrite=True)
    with pytest.raises(UnfinishedError, match=r"^3 of 4 shards built; the others .* task 1/2"):
        shards(work, options=task("0/2", **kept))
    shards(work, options=task("1/2", **kept))
    assert_same(work / "out", whole / "out")


def test_a_source_that_ends_early_fails_its_task_and_leaves_the_others_waiting(work):
    (work / "more.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 50)[:-9])
    build = partial(shards, work, replace(CONFIG, num_shards=1, validation=0.0), source="*.t*")
    with pytest.raises(InputError, match=r"more\.txt\.gz is not whole: truncated or"):
        build(task("0/2"))  # it has the largest block, that of the archive
    with pytest.raises(UnfinishedError, match=r"^\d+ of 12 blocks tokenized; .* task 0/2"):
        build(task("1/2"))
    assert not (work / "out" / MANIFEST).exists()


def test_tasks_in_a_store(work, whole, monkeypatch):
    monkeypatch.setattr(folder_lock, "START_SECONDS", 0.0)
    out = path_of("memory://tasks")
    until_finished(work, ["2/3", "0/3", "1/3"], out=out)
    names = [path.name for path in (whole / "out").glob("*-of-*.arrow")]
    assert names
    for name in (*names, MANIFEST):
        assert (out / name).read_bytes() == (whole / "out" / name).read_bytes()
    assert not (out / ".cache").exists()


# ---- one job in a folder -----------------------------------------------------------------------


def test_tasks_of_one_job_share_the_folder_and_another_job_is_refused(work):
    with pytest.raises(UnfinishedError):
        shards(work, options=task("0/2"))
    calls = []
    with locked_folder(work / "out", "one", lambda: calls.append(1)):
        with locked_folder(work / "out", "one", lambda: calls.append(2)):
            pass
        with pytest.raises(InputError, match=r"out is in use by another job: process \d+ on "):
            shards(work, options=task("1/2"))
        with pytest.raises(InputError, match=rf"out is in use by process {os.getpid()} on "):
            shards(work)
    assert calls == [1]
    assert not (work / "out" / ".lock").exists()
    until_finished(work, ["0/2", "1/2"])


def test_tasks_as_processes_one_killed_twice_one_doubled(job, tmp_path):
    out = tmp_path / "out"
    with ExitStack() as running:

        def start(text):
            line = [*COMMAND, *job.line(out, f"--task={text}")]
            return running.enter_context(in_own_group(*line))

        other = start("0/2")
        with job.killed_at(r"os.rename \.tokens$ 2", out, "--task=1/2"):
            pass
        with job.killed_at(r"open train-.*\.partial$ 1", out, "--task=1/2"):
            again = [start("1/2"), start("1/2")]
        assert [process.wait(120) for process in (other, *again)] == [0, 0, 0]
    assert_same(out, job.finished)


@pytest.mark.parametrize(
    ("sizes", "count", "owners"),
    [([5, 9, 4, 4], 2, [1, 0, 1, 0]), ([1] * 5, 2, [0, 1, 0, 1, 0]), ([7], 3, [2]), ([], 3, []),
     ([0, 0, 8, 0], 2, [1, 1, 0, 1])],
)  # fmt: skip
def test_shares_are_dealt_by_bytes_the_largest_first(sizes, count, owners):
    assert Task(count - 1, count).owners(sizes) == owners


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "4/4"}, r"^task is 4/4; tasks are counted from 0, 3/4 is the last\.$"),
        ({"task": "0/0"}, r"^task is 0/0; tasks are counted from 0\.$"),
        ({"task": "1of4"}, r"^task is '1of4'; give I/N, from 0/N to N-1/N\.$"),
        ({"task": "-1/4"}, r"^task is '-1/4'; give"),
        ({"task": "slurm"}, r"^task is 'slurm'; give"),
        ({"task": "0/4", "workers": 2}, r"^a task is one process, and workers is 2; use more"),
        ({"wait": "soon"}, r"^wait is 'soon'; give a time such as 90s"),
        ({"wait": "5h"}, r"^wait is 5h, and only a task waits; add --task, or leave it out\.$"),
        ({"block_bytes": 0}, "^block_bytes is 0; give"),
        ({"workers": -1}, r"^workers is -1; give 0 \(all cores\) or more"),
    ],
)
def test_values_that_cannot_be(values, message):
    with pytest.raises(ValueError, match=message):
        JobOptions(**values)
