"""A process group leaves no thread behind: one that outlives the interpreter aborts the process."""

import json
import subprocess
import sys

import pytest

from tests.support.two_processes import ROOT, TORCHRUN


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of /proc")
def test_the_threads_of_a_process_group_end_with_the_world():
    script = "tests/support/process_group_threads.py"
    done = subprocess.run([*TORCHRUN, script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, inside, after = json.loads(done.stdout)
    assert before < inside
    assert after == before
