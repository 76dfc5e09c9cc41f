"""The recipes of deploy/ on a real Slurm; `make slurm` has more trials, and prints a table."""

import subprocess
import sys

import pytest

from clozeline.pipeline.common.errors import InputError
from tests.support.network_hosts import unshare_command
from tests.support.slurm_cluster import check_programs
from tests.support.small_jobs import ROOT


@pytest.mark.slow
def test_a_requeued_job_trains_to_the_same_bytes(tmp_path):
    try:
        check_programs()
        unshare_command()
    except InputError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.faults.slurm", "--out", str(tmp_path / "slurm")]
    command += ["--only", "scontrol requeue$"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, row = done.stdout.splitlines()
    assert row.startswith("| pretraining: scontrol requeue | requeued ")
    assert row.endswith(" | the same |")
