"""Keeps freed memory in the process between two steps, or gives it back."""

import ctypes
import sys
from collections.abc import Callable

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
NEVER = 2**31 - 1
LARGE = 1 << 20  # bytes


def disable_malloc_trim() -> bool:
    """Make glibc's malloc keep what this process frees; returns False where there is no glibc.

    A step on CPU frees and reallocates all of its gradients, bfloat16 weights and logits. glibc
    returns tensors of this size to the system at once, and every page then faults again: up to a
    quarter of a small model's step. On a GPU host this affects the batches: a sixth of the time it
    takes to make them. The columns of a `shards` job are such blocks, too.
    """
    mallopt = _mallopt()
    return mallopt is not None and all(
        mallopt(x, NEVER) for x in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    )


def return_large_blocks() -> None:
    """Make glibc's malloc give freed tensors back to the system at once, where there is glibc.

    For a process with a memory limit: otherwise the heap stays at its peak size, with holes, and
    what is not allocated from it, such as oneDNN's code, finds no room. New threads get no heap of
    their own, either, which would reserve 64 MB.
    """
    if mallopt := _mallopt():
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE)
        mallopt(M_ARENA_MAX, 1)


def _mallopt() -> Callable[..., int] | None:
    """glibc's function; None elsewhere, as with musl."""
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
