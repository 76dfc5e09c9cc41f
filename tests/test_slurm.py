"""The recipes of deploy/ on a real Slurm; `make slurm` has more trials, and prints a table."""

import subprocess
import sys

import pytest

from clozeline.pipeline.common.errors import InputError
from tests.support.network_hosts import unshare_command
from tests.support.slurm_cluster import check_programs
from tests.support.small_jobs import ROOT


def test_without_slurm_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no `munged`; install the package munge"):
        check_programs()
    (tmp_path / "munged").touch(mode=0o755)
    with pytest.raises(InputError, match="there is no `slurmctld`; install the package slurm-wlm"):
        check_programs()


@pytest.mark.slow
def test_a_requeued_job_trains_to_the_same_bytes(tmp_path):
    try:
        check_programs()
        unshare_command()
    except InputError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.faults.slurm", "--out", str(tmp_path / "slurm")]
    done = subprocess.run(
        [*command, "--only", "scontrol requeue$"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, row = done.stdout.splitlines()
    assert row.startswith("| pretraining: scontrol requeue | requeued ")
    assert row.endswith(" | the same |")
