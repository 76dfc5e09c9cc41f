"""Print how many threads each process has before, in and after a world, as one line of JSON."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from clozeline.train.engine.distributed import join_world


def threads() -> int:
    """The threads of this process, those of C++ included."""
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    counts = [threads()]
    with join_world() as world:
        weight = torch.nn.Parameter(torch.ones(2, 2))
        optimizer = torch.optim.AdamW([weight], fused=True)
        weight.sum().backward()
        optimizer.step()  # imports more of torch.distributed
        world.wait()
        counts.append(threads())
    counts.append(threads())
    if world.is_main:
        print(json.dumps(counts))
