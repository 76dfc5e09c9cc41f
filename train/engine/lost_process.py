"""A process of the run that stopped answering: recognized, and named in one line.

A failed collective only says that a connection was closed or that nothing came in time. The
processes that see this sign in at the rendezvous store; those that do not sign in are missing.

With NCCL no process sees it: a kernel waits on the GPU, and after the patience the watchdog aborts
the process without saying who is missing. Each process therefore leaves heartbeats in the store,
too, and where those of another one have stopped, it prints the same line and ends.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from clozeline.pipeline.common.errors import LostProcessError, one_line
from clozeline.pipeline.common.signals import handled
from clozeline.train.engine.distributed import World

#: In the messages of gloo's RuntimeErrors; those of NCCL and of the store are DistErrors.
SIGNS = (
    *("Connection closed by peer", "Connection reset by peer", "Timed out waiting"),
    *("Broken pipe", "Connection refused", "Socket closed", "Read error", "Write error"),
)
#: How long the others have to sign in: their own timeouts may end a little later.
SIGN_IN = 5.0  # seconds
#: Fractions of the patience: between two heartbeats of a process, and until it counts as lost.
#: The latter ends before the watchdog's patience, which begins with the next collective.
BEAT, SILENCE = 0.02, 0.8
DONE = "done"  # the last heartbeat of a process that ended as it should
STORE = -1  # a key beside the ranks
NO_STORE = "the rendezvous store, on the machine of process 0, stopped answering"


@contextmanager
def lost_process_in_one_line(world: World) -> Iterator[None]:
    """Raise LostProcessError, with the missing ranks and their hosts, where a collective fails."""
    try:
        with _Heartbeat(world, world.store) if world.store else nullcontext():
            yield
    except RuntimeError as error:
        is_lost = isinstance(error, dist.DistError) or any(sign in str(error) for sign in SIGNS)
        if world.size == 1 or not is_lost:
            raise
        with handled((signal.SIGTERM,), lambda *_: None):  # torchrun's, sent to all that are left
            missing = _missing(world)
        raise LostProcessError(_advice(missing, one_line(error))) from error


def _advice(missing: str, reason: str) -> str:
    return (
        f"{missing} ({reason}). Start all processes again; the same command with --resume "
        "continues from the newest checkpoint."
    )


class _Heartbeat:
    """Heartbeats for the other processes; ends this one where theirs are missing.

    Threads do both, over a connection of their own to the store, as this process may wait in a
    collective that never ends. A process that is busy for long still gives signs; one whose main
    thread hangs is left to the patience.
    """

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._patience = store.timeout.total_seconds()  # type: ignore[attr-defined]
        self._stop = threading.Event()
        #: Signs awaited since the last one. Counted, not timed: a process that was itself stopped,
        #: perhaps with the whole job, has not waited.
        others = (rank for rank in range(world.size) if rank != world.rank)
        self._missed = dict.fromkeys([STORE, *others], 0)

    def __enter__(self) -> None:
        for work in (self._give, self._watch):
            threading.Thread(target=work, name="heartbeat", daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        if kind is None:
            with suppress(RuntimeError):  # rank 0 may have ended before, and the store with it
                self._store.set(f"beat/{self._world.rank}", DONE)

    def _give(self) -> None:
        seen: dict[int, bytes] = {}
        with suppress(RuntimeError):  # the store is gone, and its next signs are missed
            for number in count():
                self._store.set(f"beat/{self._world.rank}", str(number))
                for rank in self._missed.keys() - {STORE}:
                    key = f"beat/{rank}"
                    sign = self._store.get(key) if self._store.check([key]) else b""
                    if sign != seen.get(rank, b"") or sign == DONE.encode():
                        seen[rank], self._missed[rank] = sign, 0
                self._missed[STORE] = 0
                if self._stop.wait(BEAT * self._patience):
                    return

    def _watch(self) -> None:
        while not self._stop.wait(BEAT * self._patience):
            for key in self._missed:
                self._missed[key] += 1
            lost = [key for key, signs in self._missed.items() if signs * BEAT > SILENCE]
            if not lost:
                continue
            missing = NO_STORE if STORE in lost else _names(self._store, lost)
            reason = f"no heartbeat for {SILENCE * self._patience:.0f} s"
            print(f"Error: {_advice(missing, reason)}", file=sys.stderr, flush=True)
            os._exit(LostProcessError.exit_code)  # the main thread waits, perhaps in a kernel


def _missing(world: World) -> str:
    """A message naming the processes that have not signed in."""
    if world.store is None:
        return "another process stopped answering"
    # For a store whose process is stopped or cut off the kernel waits; calls do not return.
    lost: list[str] = []
    search = threading.Thread(target=lambda: lost.append(_not_signed_in(world)), daemon=True)
    search.start()
    search.join(2 * SIGN_IN)
    return lost[0] if lost else NO_STORE


def _not_signed_in(world: World) -> str:
    assert world.store is not None
    keys = {rank: f"signed in/{rank}" for rank in range(world.size) if rank != world.rank}
    try:
        # A call that does not return keeps the lock of its client.
        store: Store = world.store.clone()  # type: ignore[attr-defined]
        store.set(f"signed in/{world.rank}", "")
        deadline = time.monotonic() + SIGN_IN
        while lost := [rank for rank, key in keys.items() if not store.check([key])]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if not lost:
            return "the processes lost their connection to each other"
        return _names(store, lost)
    except RuntimeError:  # the store is gone, and with it the process or agent that keeps it
        return NO_STORE


def _names(store: Store, lost: Iterable[int]) -> str:
    hosts = {rank: store.get(f"host/{rank}").decode() for rank in lost}
    names = " and ".join(f"process {rank} on {host}" for rank, host in hosts.items())
    return f"{names} stopped answering"
