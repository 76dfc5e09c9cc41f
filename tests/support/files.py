"""What a folder holds, before and after, and a disk that is full."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file, by its path in the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def times(folder: Path) -> dict[str, int]:
    """When each file was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk does to the writer of a large file, without filling a disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
