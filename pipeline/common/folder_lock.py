"""One writer per output folder.

    with locked_folder(Path("work/run")):  # another: "work/run is in use by process 123 on HOST"
        ...

The lock is the operating system's (flock), so it ends with the process, however that ends: there
are no stale locks. The file only says who holds it.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, is_local, make_folder

LOCK = ".lock"


@contextmanager
def locked_folder(folder: AnyPath) -> Iterator[None]:
    """Create the folder if needed and hold its lock; a URL is not locked.

    A folder that was created and is still empty at the end is removed again. Raises InputError,
    naming the holder, where another process writes into the folder.
    """
    if not is_local(folder):
        yield
        return
    is_new = not folder.exists()
    path = folder / LOCK
    lock = _acquire(path)
    try:
        holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%F %T")}
        os.truncate(lock, 0)
        os.write(lock, json.dumps(holder).encode())
        yield
    finally:
        if _is_same(lock, path):
            path.unlink(missing_ok=True)  # while it is held: see `_acquire`
        os.close(lock)
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def keep_lock(folder: Path, replacement: Path) -> None:
    """Link the lock file into `replacement`, which is about to take the folder's place."""
    with suppress(OSError):  # not locked, or a file system without hard links
        os.link(folder / LOCK, replacement / LOCK)


def _acquire(path: Path) -> int:
    while True:
        make_folder(path.parent)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # its last holder removed the folder
        except OSError as error:
            raise InputError(f"cannot write to {path.parent}: {error.strerror}.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise InputError(f"{path.parent} is in use by {_holder(path)}.") from error
        if _is_same(lock, path):
            return lock
        os.close(lock)  # its last holder removed the file between our open and our lock


def _is_same(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except OSError:
        return False


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
