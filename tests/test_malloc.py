"""Freed memory stays in the process: page faults, counted in separate processes."""

import subprocess
import sys

import pytest

from clozeline.train.engine.malloc import disable_malloc_trim

FAULTS = """
import resource, sys, torch
from clozeline.train.engine.malloc import disable_malloc_trim
if sys.argv[1] == "keep":
    assert disable_malloc_trim()
def touch():
    torch.ones(10_000_000)  # 40 MB
for _ in range(20):  # until free neighbours have merged into a large enough block
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(what):
    command = [sys.executable, "-c", FAULTS, what]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not disable_malloc_trim(), reason="needs glibc")
def test_freed_memory_is_used_again_without_page_faults():
    assert faults("keep") < faults("return") / 10
