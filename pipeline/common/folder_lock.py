"""One writer per output folder, here and in a store.

    with locked_folder(Path("work/run")):  # another: "work/run is in use by process 123 on HOST"
        ...

A local lock is the operating system's, so it ends with the process, however that ends: there are no
stale locks. The file only says who holds it. A folder in a store has a lease (`store_lease.py`).
"""

import json
import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, is_local, make_folder
from clozeline.pipeline.common.store_lease import Lease

LOCK = ".lock"
SECONDS = 0.1  #: for a holder that is just about to release it


@contextmanager
def locked_folder(folder: AnyPath) -> Iterator[None]:
    """Create the folder if needed and hold its lock, or its lease.

    A local folder that was created and is still empty at the end is removed again. Raises
    InputError, naming the holder, where another process writes into the folder.
    """
    if not is_local(folder):
        with Lease(folder, uuid.uuid4().hex, is_kept=False):
            yield
        return
    is_new, path = not folder.exists(), folder / LOCK
    lock = _acquire(path)
    holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%F %T")}
    try:
        path.write_text(json.dumps(holder))
        yield
    finally:
        if _read(path) == holder:  # not that of a folder that took this one's place
            path.unlink()
        lock.release()
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def keep_lock(folder: Path, replacement: Path) -> None:
    """Link the lock file into `replacement`, which is about to take the folder's place."""
    with suppress(OSError):  # not locked, or a file system without hard links
        os.link(folder / LOCK, replacement / LOCK)


def _acquire(path: Path) -> FileLock:
    lock = FileLock(path, timeout=SECONDS, fallback_to_soft=False)
    while True:
        make_folder(path.parent)
        try:
            lock.acquire()
        except FileNotFoundError:
            continue  # its last holder removed the folder
        except Timeout as error:
            holder, by = _read(path), "another process"
            if holder:
                by = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
            raise InputError(f"{path.parent} is in use by {by}.") from error
        except OSError as error:
            raise InputError(f"cannot write to {path.parent}: {error.strerror}.") from error
        return lock


def _read(path: Path) -> dict[str, str]:
    """Who holds the lock, or held it last; empty where the file does not say."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
