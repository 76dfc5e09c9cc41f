"""Print how many threads a process has before, in and after a world, as one line of JSON.

    process_group_threads.py PORT

The other process of the world is forked, and ends as this one does.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from clozeline.train.engine.distributed import join_world


def threads() -> int:
    """The threads of this process, those of C++ included."""
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    other = os.fork()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "WORLD_SIZE": "2"}
    os.environ.update(place, RANK=str(int(not other)))
    counts = [threads()]
    with join_world() as world:
        weight = torch.nn.Parameter(torch.ones(2, 2))
        optimizer = torch.optim.AdamW([weight], fused=True)
        weight.sum().backward()
        optimizer.step()  # imports more of torch.distributed
        world.any(False)
        counts.append(threads())
    del world  # and the store, which has a thread in rank 0
    counts.append(threads())
    if other:
        print(json.dumps(counts))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) != 0)
