"""The store of one attempt of torchrun, in which the processes find each other.

torchrun's agents keep one store for all attempts (`--max-restarts`). It still has the addresses of
the processes of earlier ones, and a process that connects to such an address waits for it until the
patience is over. torchrun counts the restarts of each machine alone, so its count names no attempt.
"""

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

LEADER = "clozeline/attempt"
POLL_SECONDS = 0.1


def attempt_store(store: Store, rank: int, size: int, *, patience: timedelta) -> Store:
    """The store with a prefix that only the processes of this attempt know.

    Rank 0 draws the prefix. Each of the others shows it a token of its own under the prefix that it
    reads, and takes that once the token is confirmed: rank 0 of an earlier attempt, whose prefix it
    may have read, confirms nothing any more. All processes restart together, as with torchrun's
    rendezvous over c10d. A collective call. Raises DistStoreError where rank 0 does not answer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # the store is new
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
