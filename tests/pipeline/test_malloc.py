"""Freed memory stays in the process: page faults, counted in a separate process."""

import pytest

from tests.support.small_jobs import python

FAULTS = """
import resource
from clozeline.pipeline.common.malloc import disable_malloc_trim
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        b"x" * 40_000_000  # written, then freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back, is_glibc, _, kept = faults(), disable_malloc_trim(), faults(), faults()
print(given_back, is_glibc, kept)
"""


def test_freed_memory_is_used_again_without_page_faults():
    given_back, is_glibc, kept = python("-c", FAULTS).split()
    if is_glibc == "False":
        pytest.skip("needs glibc")
    assert int(kept) < int(given_back) / 10
