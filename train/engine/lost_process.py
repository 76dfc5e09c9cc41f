"""A process of the run that stopped answering: recognized, and named in one line.

A failed collective only says that a connection was closed or that nothing came in time. The
processes that see this sign in at the rendezvous store; those that do not sign in are missing.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from clozeline.pipeline.common.errors import LostProcessError, one_line
from clozeline.train.engine.distributed import World

#: In the messages of gloo's RuntimeErrors; those of NCCL and of the store are DistErrors.
SIGNS = (
    *("Connection closed by peer", "Connection reset by peer", "Timed out waiting"),
    *("Broken pipe", "Connection refused", "Socket closed", "Read error", "Write error"),
)
#: How long the others have to sign in: their own timeouts may end a little later.
SIGN_IN = 5.0  # seconds
NO_STORE = "the rendezvous store, on the machine of process 0, stopped answering"


@contextmanager
def lost_process_in_one_line(world: World) -> Iterator[None]:
    """Raise LostProcessError, with the missing ranks and their hosts, where a collective fails."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not is_lost_process(error):
            raise
        raise LostProcessError(
            f"{_missing(world)} ({one_line(error)}). Start all processes again; the same command "
            "with --resume continues from the newest checkpoint."
        ) from error


def is_lost_process(error: BaseException) -> bool:
    """Whether a collective failed because another process did not take part in it."""
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in SIGNS)


def _missing(world: World) -> str:
    """A message naming the processes that have not signed in."""
    if world.store is None:
        return "another process stopped answering"
    if not _reaches_store():
        return NO_STORE
    # The kernel accepts connections for a store whose process is stopped; calls then never return.
    lost: list[str] = []
    search = threading.Thread(target=lambda: lost.append(_not_signed_in(world)), daemon=True)
    search.start()
    search.join(2 * SIGN_IN)
    return lost[0] if lost else NO_STORE


def _not_signed_in(world: World) -> str:
    assert world.store is not None
    keys = {rank: f"signed in/{rank}" for rank in range(world.size) if rank != world.rank}
    try:
        world.store.set(f"signed in/{world.rank}", "")
        deadline = time.monotonic() + SIGN_IN
        while lost := [rank for rank, key in keys.items() if not world.store.check([key])]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        hosts = {rank: world.store.get(f"host/{rank}").decode() for rank in lost}
    except RuntimeError:  # the store is gone, and with it the process or agent that keeps it
        return NO_STORE
    if not hosts:
        return "the processes lost their connection to each other"
    names = " and ".join(f"process {rank} on {host}" for rank, host in hosts.items())
    return f"{names} stopped answering"


def _reaches_store() -> bool:
    """Whether the store answers; a process that is cut off would wait a quarter of an hour."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        with socket.create_connection(address, timeout=SIGN_IN):
            return True
    except OSError:
        return False
