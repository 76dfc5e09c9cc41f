"""The memory of a job on this machine, workers included."""

import re
import resource
from pathlib import Path


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
