"""One writer per output folder, here and in a store.

    with locked_folder(Path("work/run")):  # another: "work/run is in use by process 123 on HOST"
        ...
    with locked_folder(Path("work/shards"), "5f0c...", prepare):  # together: the tasks of one job
        ...

A local lock is the operating system's, so it ends with the process, however that ends: there are no
stale locks. The file only says who holds it. A folder in a store has a lease instead:

    FOLDER/.lease    {"owner": "5f0c...", "pid": 123, "host": "a", "renewed": 1763.2}

Its holder renews it three times in `LEASE_SECONDS`. Another process waits that long: it is refused
if the holder renews the lease, and let in if the lease is given back or does not change, as after a
kill. `renewed` is the time on the holder's machine, whose clock may be wrong: it is compared with
its earlier value, never with the local time. Stores have no common lock: of two processes that
start at once, the last to write the lease has it, and the other one finds that out when it reads
the lease a second later, or else at its next renewal, and stops.
"""

import fcntl
import json
import os
import platform
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.common.folders import LOCK
from clozeline.pipeline.common.paths import (
    AnyPath,
    is_local,
    make_folder,
    reason_of,
    with_retries,
)

if TYPE_CHECKING:
    from upath import UPath

SECONDS = 0.1  #: for a holder that is just about to release it, or to say who it is
LEASE = ".lease"
LEASE_SECONDS = 60.0
START_SECONDS = 1.0  #: for another process that starts at once to write its lease, too
STOP = signal.SIGTERM  #: `pretrain` answers it with a checkpoint

Holder = dict[str, Any]


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
        with Lease(folder, holder["owner"], is_kept=False):
            prepare()
            yield
        return
    holder |= {"host": platform.node(), "since": time.strftime("%F %T")}
    is_new = not folder.exists()
    try:
        lock = _acquire(folder, holder, prepare, "another job: " if owner else "")
        try:
            yield
        finally:
            _release(lock, folder / LOCK)
    finally:
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def keep_lock(folder: Path, replacement: Path) -> None:
    """Link the lock file into `replacement`, which is about to take the folder's place."""
    with suppress(OSError):  # not locked, or a file system without hard links
        os.link(folder / LOCK, replacement / LOCK)


def _acquire(folder: Path, holder: Holder, prepare: Callable[[], None], other: str) -> int:
    path, tries = folder / LOCK, 0
    while True:
        make_folder(folder)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # its last holder removed the folder
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}.") from error
        try:
            if _is_held(lock, path, holder, prepare):
                return lock
            owner = _read(path)
            if tries and owner and owner.get("owner") != holder["owner"]:
                raise InputError(
                    f"{folder} is in use by {other}process {owner.get('pid')} on "
                    f"{owner.get('host')} since {owner.get('since')}."
                )
        except BaseException:
            _release(lock, path)
            raise
        os.close(lock)
        tries += 1
        time.sleep(SECONDS)


def _is_held(lock: int, path: Path, holder: Holder, prepare: Callable[[], None]) -> bool:
    """Whether the lock is held. Not yet while another process prepares or ends."""
    if _flock(lock, fcntl.LOCK_EX, path):
        try:
            path.write_bytes(json.dumps(holder).encode())
        except OSError as error:
            raise InputError(f"cannot write to {path.parent}: {error.strerror}.") from error
        prepare()
    elif _read(path).get("owner") != holder["owner"]:
        return False
    # Another process may be faster.
    return _flock(lock, fcntl.LOCK_SH, path) and _read(path).get("owner") == holder["owner"]


def _release(lock: int, path: Path) -> None:
    # The file is removed by the last one, and not in a folder that took this one's place.
    try:
        if _flock(lock, fcntl.LOCK_EX, path):
            path.unlink()
    finally:
        os.close(lock)


def _flock(lock: int, kind: int, path: Path) -> bool:
    """Whether the lock was free, and its file is still the one of this name."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if not _read(path):  # no process could lock it
            path.unlink(missing_ok=True)
        raise InputError(
            f"the file system of {path.parent} has no locks ({error.strerror}); give another path."
        ) from error


def _read(path: Path) -> Holder:
    """Who holds the lock, or held it last; empty where the file does not say."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


class Lease:
    """A lease in the name of `owner`; as a context it is held and renewed.

    At the end it is removed, unless another process of the owner has renewed it since; with
    `is_kept`, it still says who held it last. Another owner's lease ends the process by a signal,
    or, at the latest, the block by JobFailedError.
    """

    def __init__(self, folder: "UPath", owner: str, *, is_kept: bool) -> None:
        self._folder, self._owner, self._is_kept = folder, owner, is_kept
        self._written: dict[str, Any] = {}  # by this process, last
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Raises InputError where another process holds and renews it, and StoreError."""
        self._wait_for_a_killed_holder()
        with_retries(self._write, self._folder)
        self._end.wait(START_SECONDS)
        if self._is_of_another(holder := self.holder()):
            raise self._in_use(holder)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        try:
            self.confirm()
            if self.holder() != self._written:
                return
            if self._is_kept:
                self._write(is_held=False)
            else:  # another process of the owner may be faster
                with suppress(FileNotFoundError):
                    (self._folder / LEASE).unlink()
        except JobFailedError:
            if kind is None:
                raise
        except Exception as error:  # it expires by itself
            self._warn(error)

    def holder(self) -> dict[str, Any]:
        """Who holds it, or held it last; empty without a holder. Raises StoreError."""
        return with_retries(self._read, self._folder)

    def confirm(self) -> None:
        """Raises JobFailedError where another process has taken it since, and StoreError."""
        if self._is_of_another(holder := self.holder()):
            raise JobFailedError(
                f"{self._folder} was taken over by process {holder['pid']} on {holder['host']}, "
                "while this one did not renew its lease."
            )

    def _read(self) -> dict[str, Any]:
        try:
            lease: dict[str, Any] = json.loads((self._folder / LEASE).read_bytes())
        except FileNotFoundError:
            return {}
        return lease

    def _wait_for_a_killed_holder(self) -> None:
        """Return once the lease is free, or has not changed for as long as it lasts."""
        first, start = self.holder(), time.monotonic()
        if self._is_free(first):
            return
        print(
            f"{self._folder} was in use by process {first['pid']} on {first['host']}; waiting for "
            f"up to {LEASE_SECONDS:.0f} s to see whether it still is",
            file=sys.stderr,
        )
        lease = first
        while not self._is_free(lease):
            if lease != first:
                raise self._in_use(lease)
            if time.monotonic() - start >= LEASE_SECONDS:
                return
            self._end.wait(LEASE_SECONDS / 60)
            lease = self.holder()

    def _is_of_another(self, lease: dict[str, Any]) -> bool:
        return bool(lease.get("owner", self._owner) != self._owner)

    def _is_free(self, lease: dict[str, Any]) -> bool:
        return not (self._is_of_another(lease) and lease["renewed"])

    def _in_use(self, lease: dict[str, Any]) -> InputError:
        return InputError(
            f"{self._folder} is in use by process {lease['pid']} on {lease['host']}, which has "
            "just renewed its lease; wait for its end, or give another folder."
        )

    def _write(self, *, is_held: bool = True) -> None:
        lease = {"owner": self._owner, "pid": os.getpid(), "host": platform.node()}
        lease |= {"renewed": time.time() if is_held else 0}
        make_folder(self._folder)
        (self._folder / LEASE).write_bytes(json.dumps(lease).encode())
        self._written = lease

    def _keep_renewing(self) -> None:
        while not self._end.wait(LEASE_SECONDS / 3):
            try:
                self.confirm()
                self._write()
            except JobFailedError as error:
                print(f"Error: {error}", file=sys.stderr)  # not every command answers the signal
                os.kill(os.getpid(), STOP)
                return
            except Exception as error:  # the next renewal may succeed
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        print(f"warning: the lease of {self._folder}: {reason_of(error)}", file=sys.stderr)
