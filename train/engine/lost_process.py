"""A process of the run that stopped answering: recognized, and named in one line.

A failed collective only says that a connection was closed or that nothing came in time. The
processes that see this sign in at the rendezvous store; those that do not sign in are missing.

With NCCL no process sees it: a kernel waits on the GPU, and after the patience torch's watchdog
aborts the process, without saying who is missing.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
NO_STORE = "the rendezvous store, on the machine of process 0, stopped answering"


@contextmanager
def lost_process_in_one_line(world: World) -> Iterator[None]:
    """Raise LostProcessError, with the missing ranks and their hosts, where a collective fails."""
    try:
        yield
    except RuntimeError as error:
        is_lost = isinstance(error, dist.DistError) or any(sign in str(error) for sign in SIGNS)
        if world.size == 1 or not is_lost:
            raise
        with handled((signal.SIGTERM,), lambda *_: None):  # torchrun's, sent to all that are left
            missing = _missing(world)
        raise LostProcessError(
            f"{missing} ({one_line(error)}). Start all processes again; the same command with "
            "--resume continues from the newest checkpoint."
        ) from error


def _missing(world: World) -> str:
    """A message naming the processes that have not signed in."""
    if world.store is None:
        return "another process stopped answering"
    # For a store whose process is stopped or cut off the kernel waits; calls do not return.
    lost: list[str] = []
    search = threading.Thread(target=_find_missing, args=(world, world.store, lost), daemon=True)
    search.start()
    search.join(2 * SIGN_IN)
    return lost[0] if lost else NO_STORE


def _find_missing(world: World, store: Store, found: list[str]) -> None:
    """Append a message to `found`, unless the store does not answer."""
    others = [rank for rank in range(world.size) if rank != world.rank]
    try:
        store.set(f"signed in/{world.rank}", "")
        deadline = time.monotonic() + SIGN_IN
        while lost := [rank for rank in others if not store.check([f"signed in/{rank}"])]:
            if time.monotonic() > deadline:
                hosts = {rank: store.get(f"host/{rank}").decode() for rank in lost}
                names = " and ".join(f"process {rank} on {host}" for rank, host in hosts.items())
                found.append(f"{names} stopped answering")
                return
            time.sleep(0.1)
        found.append("the processes lost their connection to each other")
    except RuntimeError:  # the store is gone, and with it the process or agent that keeps it
        found.append(NO_STORE)
