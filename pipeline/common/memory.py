"""The memory of a job on this machine, workers included: how much it is, and what is kept."""

import ctypes
import re
import resource
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NEVER = 2**31 - 1


def tree_memory() -> int:
    """Bytes of this process and its descendants, with shared pages counted once.

    The sum of proportional set sizes if the system reports them, else of unique set sizes.
    """
    import psutil

    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            memory = process.memory_full_info()
        except psutil.Error:  # it has ended meanwhile
            continue
        total += getattr(memory, "pss", memory.uss)
    return total


def process_peak() -> int:
    """The peak resident set size of this process in bytes, shared pages included.

    Not `ru_maxrss`, which Linux passes on to a new program: that of a large parent would count.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def release_memory() -> None:
    """Return to the system the free memory that the allocators keep.

    After tokenizing, a worker keeps some 200 MB of free blocks that are too small for the arrays of
    a shard.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()  # malloc's, which numpy uses, too


def disable_malloc_trim() -> bool:
    """Make glibc's malloc keep what this process frees; returns False where there is no glibc.

    A step on CPU frees and reallocates all of its gradients, bfloat16 weights and logits. glibc
    returns tensors of this size to the system at once, and every page then faults again: up to a
    quarter of a small model's step. On a GPU host this affects the batches: a sixth of the time it
    takes to make them. The columns of a `shards` job are such blocks, too.
    """
    # None with musl.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(
        mallopt(x, NEVER) for x in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    )
