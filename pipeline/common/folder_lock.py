"""One writer per output folder, here and in a store.

    with locked_folder(Path("work/run")):  # another: "work/run is in use by process 123 on HOST"
        ...
    with locked_folder(Path("work/shards"), "5f0c...", prepare):  # together: the tasks of one job
        ...

A local lock is the operating system's, so it ends with the process, however that ends: there are no
stale locks. The file only says who holds it. A folder in a store has a lease (`store_lease.py`).
"""

import fcntl
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, is_local, make_folder
from clozeline.pipeline.common.store_lease import Lease

LOCK = ".lock"
SECONDS = 0.1  #: for a holder that is just about to release it, or to say who it is

Holder = dict[str, object]


@contextmanager
def locked_folder(
    folder: AnyPath, owner: str | None = None, prepare: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Create the folder if needed and hold its lock, or its lease.

    Alone, or together with all processes of an `owner`, which is known by its digest. `prepare` is
    called while no other process holds it, by each that comes then; in a store, where none of them
    knows, by each. A local folder that was created and is still empty at the end is removed again.
    Raises InputError, naming the holder, where another process writes into the folder.
    """
    holder: Holder = {"owner": owner or uuid.uuid4().hex, "pid": os.getpid()}
    if not is_local(folder):
        with Lease(folder, str(holder["owner"]), is_kept=False):
            prepare()
            yield
        return
    holder |= {"host": platform.node(), "since": time.strftime("%F %T")}
    is_new, path = not folder.exists(), folder / LOCK
    try:
        lock = _acquire(path, holder, prepare, "another job: " if owner else "")
        try:
            yield
        finally:
            _release(lock, path)
    finally:
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _release(lock: int, path: Path) -> None:
    # The file is removed by the last one, and not in a folder that took this one's place.
    try:
        if _flock(lock, fcntl.LOCK_EX, path) and _is_same(lock, path):
            path.unlink()
    finally:
        os.close(lock)


def keep_lock(folder: Path, replacement: Path) -> None:
    """Link the lock file into `replacement`, which is about to take the folder's place."""
    with suppress(OSError):  # not locked, or a file system without hard links
        os.link(folder / LOCK, replacement / LOCK)


def _acquire(path: Path, holder: Holder, prepare: Callable[[], None], other: str) -> int:
    is_again = False
    while True:
        make_folder(path.parent)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # its last holder removed the folder
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            if _is_held(lock, path, holder, prepare):
                return lock
            found = _read(path)
            if is_again and found and found.get("owner") != holder["owner"]:
                raise InputError(
                    f"{path.parent} is in use by {other}process {found.get('pid')} on "
                    f"{found.get('host')} since {found.get('since')}."
                )
        except BaseException:
            _release(lock, path)
            raise
        os.close(lock)
        is_again = True
        time.sleep(SECONDS)


def _is_held(lock: int, path: Path, holder: Holder, prepare: Callable[[], None]) -> bool:
    """Whether the lock is held. Not yet while another process prepares or ends."""
    if _flock(lock, fcntl.LOCK_EX, path) and _is_same(lock, path):
        try:
            os.truncate(lock, 0)
            os.write(lock, json.dumps(holder).encode())
        except OSError as error:
            raise _cannot_write(path, error) from error
        prepare()
    elif _read(path).get("owner") != holder["owner"]:
        return False
    is_shared = _flock(lock, fcntl.LOCK_SH, path)  # another process may be faster
    return is_shared and _is_same(lock, path) and _read(path).get("owner") == holder["owner"]


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write to {path.parent}: {error.strerror}.")


def _flock(lock: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f"the file system of {path.parent} has no locks ({error.strerror}); give another path."
        ) from error
    return True


def _is_same(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _read(path: Path) -> Holder:
    """Who holds the lock, or held it last; empty where the file does not say."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
