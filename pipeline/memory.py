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
