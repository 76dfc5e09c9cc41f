"""What a folder holds, before and after, and a disk that is full."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file, by its path in the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def times(folder: Path, pattern: str = "**/*") -> dict[str, tuple[int, int]]:
    """Inode and time of each file: they differ if it was written again."""
    stats = {str(path): path.stat() for path in folder.glob(pattern) if path.is_file()}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk does to the writer of a large file, without filling a disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
