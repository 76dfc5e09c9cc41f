"""Keeps freed memory in the process between two steps."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NEVER = 2**31 - 1


def disable_malloc_trim() -> bool:
    """Make glibc's malloc keep what this process frees; returns False where there is no glibc.

    A step on CPU frees and reallocates all of its gradients, bfloat16 weights and logits. glibc
    returns tensors of this size to the system at once, and every page then faults again: up to a
    quarter of a small model's step. On a GPU host it concerns the batches, a sixth of the time they
    take to make.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(
        mallopt(x, NEVER) for x in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    )
