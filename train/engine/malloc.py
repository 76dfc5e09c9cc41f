"""Memory that the allocator does not give back to the system between two steps."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NEVER = 2**31 - 1


def disable_malloc_trim() -> bool:
    """Let this process keep what it frees; whether that was possible (with glibc only).

    A step on CPU frees and allocates again all of its gradients, weights in bfloat16 and logits.
    glibc gives tensors of this size back at once, and each of their pages is then fetched anew:
    up to a quarter of the step of a small model. Beside a GPU it is the batches, a sixth of their
    making.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(
        mallopt(x, NEVER) for x in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    )
