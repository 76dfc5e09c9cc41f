"""The lease of a store's folder: one process writes there, on whatever machine.

    FOLDER/.lease    {"owner": "5f0c...", "pid": 123, "host": "a", "renewed": 1763.2}

Its holder renews it three times in `LEASE_SECONDS`; another process is refused until it is given
back, or that old. Stores have no common lock, so two processes that start within the same second
may both be let in: the renewal of one of them finds the other and ends it.
"""

import json
import os
import platform
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from pipeline.common.errors import InputError, one_line
from pipeline.common.paths import AnyPath

if TYPE_CHECKING:
    from upath import UPath

LEASE = ".lease"
LEASE_SECONDS = 60.0
STOP = signal.SIGTERM  #: `pretrain` answers it with a checkpoint


class Lease:
    """A lease in the name of `owner`; as a context it is held and renewed."""

    def __init__(self, folder: "UPath", owner: str) -> None:
        self.lost: InputError | None = None  #: why it is not held any more
        self._folder, self._owner = folder, owner
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Raises InputError where another process holds it."""
        try:
            self._check()
            self._write(time.time())
            self._check()
        except InputError:
            raise
        except Exception as error:  # each store's library has its own
            raise InputError(unreachable(self._folder, error)) from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self.lost is None:
            try:
                self._write(0.0)
            except Exception as error:  # it ends by itself
                print(f"warning: {unreachable(self._folder, error)}", file=sys.stderr)

    def holder(self) -> dict[str, Any]:
        """Who holds it, or held it last; empty without a holder. Raises what the store does."""
        try:
            lease: dict[str, Any] = json.loads((self._folder / LEASE).read_bytes())
        except FileNotFoundError:
            return {}
        return lease

    def _check(self) -> None:
        lease = self.holder()
        age = time.time() - lease.get("renewed", 0.0)
        if lease.get("owner") != self._owner and age < LEASE_SECONDS:
            raise InputError(
                f"{self._folder} is in use by process {lease['pid']} on {lease['host']}, last seen "
                f"{age:.0f} s ago; wait for its end, or give another folder."
            )

    def _check_owner(self) -> None:
        """Raises InputError where another process has taken it since, also if it has ended."""
        holder = self.holder()
        if holder.get("owner", self._owner) != self._owner:
            raise InputError(
                f"{self._folder} was taken over by process {holder['pid']} on {holder['host']}, "
                "while this one did not renew its lease."
            )

    def _write(self, renewed: float) -> None:
        lease = {"owner": self._owner, "pid": os.getpid(), "host": platform.node()}
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / LEASE).write_bytes(json.dumps(lease | {"renewed": renewed}).encode())

    def _renew(self) -> None:
        while not self._end.wait(LEASE_SECONDS / 3):
            try:
                self._check_owner()
                self._write(time.time())
            except InputError as error:
                self.lost = error
                print(f"Error: {error}", file=sys.stderr)  # not every command answers the signal
                os.kill(os.getpid(), STOP)
                return
            except Exception as error:  # the next time may go well
                print(f"warning: {unreachable(self._folder, error)} Retried.", file=sys.stderr)


def unreachable(path: AnyPath, error: Exception) -> str:
    """What is wrong with a store, in one line."""
    reason = one_line(error) or type(error).__name__
    return f"{path} cannot be read or written now ({type(error).__name__}: {reason})."
