"""The store of one attempt of torchrun, in which the processes find each other.

torchrun's agents keep one store for all attempts (`--max-restarts`). It still has the addresses of
the processes of earlier ones, and a process that connects to such an address waits for it until the
patience is over. torchrun counts the restarts of each machine alone, so its count names no attempt.
"""

import os
import time
import uuid
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

LEADER, HELD = "clozeline/attempt", "clozeline/held"
#: The mark of the last torchrun command that wrote a folder: its restart continues what is there.
STARTED = ".started"
POLL_SECONDS = 0.1


def attempt_store(store: Store, rank: int, size: int, *, patience: timedelta) -> Store:
    """The store with a prefix that only the processes of this attempt know.

    Rank 0 draws the prefix. Each of the others shows it a token of its own under the prefix that it
    reads, and takes that once the token is confirmed: rank 0 of an earlier attempt, whose prefix it
    may have read, confirms nothing any more. All processes restart together, as with torchrun's
    rendezvous over c10d. A collective call. Raises DistStoreError where rank 0 does not answer.
    """
    if not _is_kept():
        return store
    mine = uuid.uuid4().hex
    if rank == 0:
        store.set(LEADER, mine)
        for other in range(1, size):
            token = store.get(f"{mine}/{other}").decode()
            store.set(f"{mine}/{other}/{token}", "")
        return PrefixStore(mine, store)
    end = time.monotonic() + patience.total_seconds()
    while time.monotonic() < end:
        prefix = store.get(LEADER).decode()
        store.set(f"{prefix}/{rank}", mine)
        if store.check([f"{prefix}/{rank}/{mine}"]):
            return PrefixStore(prefix, store)
        time.sleep(POLL_SECONDS)
    raise dist.DistStoreError("rank 0 did not answer")


def leave_mark(folder: Path) -> None:
    """Mark a folder as one that this torchrun command writes."""
    if dist.is_torchelastic_launched():
        (folder / STARTED).write_text(os.environ["TORCHELASTIC_RUN_ID"])


def keep_own_mark(folder: Path, store: Store | None, *, has_failed: bool) -> bool:
    """Remove the mark of another command from a locked folder; True if one of this command stays.

    `has_failed` says whether this is a restart, after an attempt that may have left the mark.
    """
    mark = folder / STARTED
    is_restart = _held_before(store, folder) and has_failed
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    is_own = is_restart and mark.exists() and mark.read_text() == run_id
    if not is_own:
        mark.unlink(missing_ok=True)
    return is_own


def _held_before(store: Store | None, folder: Path) -> bool:
    """Whether an earlier attempt of this torchrun command had the folder, as this one has it now.

    True, too, where that cannot be known: without a store that all attempts have.
    """
    if store is None or not _is_kept():
        return True
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.add(f"{HELD}/{folder.resolve()}", 1) > 1


def _is_kept() -> bool:
    """Whether the store is that of torchrun's agents, and not new."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
