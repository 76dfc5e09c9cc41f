"""Running out of memory, on a GPU or in the process: recognized, and reported in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clozeline.pipeline.common.errors import OutOfMemoryError, one_line

#: In the messages of RuntimeErrors from torch's CPU allocator, C++, CUDA outside the allocator, and
#: oneDNN, which gives no better reason.
SIGNS = (
    *("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory"),
    "could not create a primitive",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


@contextmanager
def out_of_memory_in_one_line(what: str, remedy: str) -> Iterator[None]:
    """Turn any out-of-memory error into OutOfMemoryError: `what` did not fit, and the `remedy`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = one_line(error) or type(error).__name__
        raise OutOfMemoryError(f"out of memory in {what}; {remedy}. ({reason})") from error
