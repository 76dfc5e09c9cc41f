"""Freed memory that stays: counted as page faults, in processes of their own."""

import subprocess
import sys

import pytest

from train.engine.malloc import disable_malloc_trim

FAULTS = """
import resource, sys, torch
from train.engine.malloc import disable_malloc_trim
if sys.argv[1] == "keep":
    assert disable_malloc_trim()
def touch():
    torch.ones(10_000_000)  # 40 MB
for _ in range(20):  # until free neighbours have grown together to a place that is large enough
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(what):
    command = [sys.executable, "-c", FAULTS, what]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not disable_malloc_trim(), reason="only glibc can keep it")
def test_memory_that_was_freed_is_used_again_and_not_fetched_anew():
    assert faults("keep") < faults("give back") / 10
