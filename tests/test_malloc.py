"""Freed memory stays in the process: page faults, counted in separate processes."""

import pytest

from clozeline.pipeline.common.malloc import disable_malloc_trim
from tests.support.small_jobs import python

FAULTS = """
import resource, sys, torch
from clozeline.pipeline.common.malloc import disable_malloc_trim
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


@pytest.mark.skipif(not disable_malloc_trim(), reason="needs glibc")
def test_freed_memory_is_used_again_without_page_faults():
    keep, give_back = (int(python("-c", FAULTS, what)) for what in ("keep", "return"))
    assert keep < give_back / 10
