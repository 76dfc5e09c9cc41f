"""The lease on a store's folder: only one process writes there, on whatever machine.

    FOLDER/.lease    {"owner": "5f0c...", "pid": 123, "host": "a", "renewed": 1763.2}

Its holder renews it three times in `LEASE_SECONDS`. Another process waits that long: it is refused
if the holder renews the lease, and let in if the lease is given back (`renewed` is 0) or does not
change, as after a kill. `renewed` is the time on the holder's machine, whose clock may be wrong: it
is compared with its earlier value, never with the local time. Stores have no common lock, so two
processes that start within the same second may both be let in: one of them finds the other at its
next renewal and stops. A process that was cut off for longer writes nothing until it has confirmed
that it still holds the lease.
"""

import json
import os
import platform
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.common.store import patiently, reason_of

if TYPE_CHECKING:
    from upath import UPath

LEASE = ".lease"
LEASE_SECONDS = 60.0
STOP = signal.SIGTERM  #: `pretrain` answers it with a checkpoint


class Lease:
    """A lease in the name of `owner`; as a context it is held and renewed."""

    def __init__(self, folder: "UPath", owner: str) -> None:
        self.lost: JobFailedError | None = None  #: why it is not held any more
        self._folder, self._owner = folder, owner
        self._renewed_at = -LEASE_SECONDS
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Raises InputError where another process holds and renews it, and StoreError."""
        self._wait_for_a_killed_holder()
        patiently(self._renewed, self._folder)
        holder = self.holder()
        if holder.get("owner", self._owner) != self._owner:
            raise self._in_use(holder)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self.lost is None:
            try:
                self.confirm()
                self._write(0.0)
            except Exception as error:  # it expires by itself
                self._warn(error)

    def holder(self) -> dict[str, Any]:
        """Who holds it, or held it last; empty without a holder. Raises StoreError."""
        return patiently(self._read, self._folder)

    def is_fresh(self) -> bool:
        """Whether it was renewed so recently that no other process can have taken it."""
        return time.monotonic() - self._renewed_at < LEASE_SECONDS

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

    def _is_free(self, lease: dict[str, Any]) -> bool:
        return lease.get("owner") == self._owner or not lease.get("renewed")

    def _in_use(self, lease: dict[str, Any]) -> InputError:
        return InputError(
            f"{self._folder} is in use by process {lease['pid']} on {lease['host']}, which has "
            "just renewed its lease; wait for its end, or give another folder."
        )

    def confirm(self) -> None:
        """Raises JobFailedError where another process has taken it since, and StoreError."""
        holder = self.holder()
        if holder.get("owner", self._owner) != self._owner:
            self.lost = JobFailedError(
                f"{self._folder} was taken over by process {holder['pid']} on {holder['host']}, "
                "while this one did not renew its lease."
            )
            raise self.lost

    def _write(self, renewed: float) -> None:
        lease = {"owner": self._owner, "pid": os.getpid(), "host": platform.node()}
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / LEASE).write_bytes(json.dumps(lease | {"renewed": renewed}).encode())

    def _renewed(self) -> None:
        now = time.monotonic()
        self._write(time.time())
        self._renewed_at = now

    def _warn(self, error: Exception) -> None:
        print(f"warning: the lease of {self._folder}: {reason_of(error)}", file=sys.stderr)

    def _renew(self) -> None:
        while not self._end.wait(LEASE_SECONDS / 3):
            try:
                self.confirm()
                self._renewed()
            except JobFailedError as error:
                print(f"Error: {error}", file=sys.stderr)  # not every command answers the signal
                os.kill(os.getpid(), STOP)
                return
            except Exception as error:  # the next renewal may succeed
                self._warn(error)
