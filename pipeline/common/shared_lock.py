"""A folder that several processes of one owner write, and no other process.

    with shared_folder(Path("work/shards"), "5f0c...", prepare):  # the tasks of one job
        ...

They share the lock of `folder_lock.py`, or the lease in a store, and other jobs are refused. An
owner is known by its digest.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import LOCK
from clozeline.pipeline.common.paths import AnyPath, is_local, make_folder
from clozeline.pipeline.common.store_lease import Lease

RETRY_SECONDS = 0.1


@contextmanager
def shared_folder(folder: AnyPath, owner: str, prepare: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of the folder together with all processes of this owner.

    `prepare` is called while no other process holds it, by each that comes then; in a store,
    where none of them knows, by each. Raises InputError where another owner holds the lock.
    """
    if not is_local(folder):
        with Lease(folder, owner, is_kept=False):
            prepare()
            yield
        return
    path = folder / LOCK
    lock = _join(path, owner, prepare)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()  # by the last one, while no other process has it
        os.close(lock)


def _join(path: Path, owner: str, prepare: Callable[[], None]) -> int:
    while True:
        make_folder(path.parent)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if _joined(lock, path, owner, prepare):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        time.sleep(RETRY_SECONDS)


def _joined(lock: int, path: Path, owner: str, prepare: Callable[[], None]) -> bool:
    """Whether the lock is held. Not yet while another process prepares or ends."""
    if _flock(lock, fcntl.LOCK_EX) and _is_same(lock, path):
        holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%F %T")}
        os.truncate(lock, 0)
        os.write(lock, json.dumps(holder | {"owner": owner}).encode())
        prepare()
    is_shared = _flock(lock, fcntl.LOCK_SH)  # another process may be faster
    found = _read(path)
    if found and found.get("owner") != owner:
        raise InputError(
            f"{path.parent} is in use by another job: process {found.get('pid')} on "
            f"{found.get('host')} since {found.get('since')}."
        )
    return is_shared and bool(found) and _is_same(lock, path)


def _flock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _read(path: Path) -> dict[str, object]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
