"""A worker or the scheduler of a Dask cluster is killed: the same bytes, at once or the next time.

The cluster is that of the manual: a scheduler and two workers, each a process of its own.
"""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

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

pytestmark = pytest.mark.slow
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
