"""How much memory a job holds on this machine, workers included."""

import os


def tree_memory() -> int:
    """Bytes of this process and of all below it, a page that several share counted once.

    The sum of the proportional set sizes where the system tells them, else of the unique ones.
    """
    import psutil

    me = psutil.Process(os.getpid())
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            memory = process.memory_full_info()
        except psutil.Error:  # it ended while we looked
            continue
        total += getattr(memory, "pss", memory.uss)
    return total


def process_peak() -> int:
    """Bytes that this process held at most, shared pages counted in full."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def release_memory() -> None:
    """Give back to the system what the allocators keep for later, Python's own of large blocks too.

    A worker that has cut a text into words keeps some 200 MB of such holes, which are of no use to
    the arrays of a shard.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()  # that of malloc, which numpy shares
