"""Running out of memory, on a GPU or in the process, reported in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from clozeline.pipeline.common.errors import OutOfMemoryError, is_out_of_memory, one_line


@contextmanager
def out_of_memory_in_one_line(work: str, remedy: str) -> Iterator[None]:
    """Turn any out-of-memory error into OutOfMemoryError: `what` did not fit, and the `remedy`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = one_line(error) or type(error).__name__
        raise OutOfMemoryError(f"out of memory in {work}; {remedy}. ({reason})") from error
