"""Two hosts, of which one is killed; `make hosts` does this and more, and prints a table."""

import subprocess
import sys

import pytest

from clozeline.pipeline.common.errors import InputError
from tests.support.network_hosts import unshare_command
from tests.support.small_jobs import ROOT


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
