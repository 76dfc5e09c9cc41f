"""A command of `clozeline` in a process that may allocate only so many more megabytes.

    python tests/support/limited_memory.py 300 pretrain SHARDS --out RUN ...
    torchrun ... tests/support/limited_memory.py 3000,300 pretrain ...      a limit for each rank

Everything is imported before the limit is set, so that it bounds what training allocates.
"""

import os
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from clozeline.train.cli import main
from clozeline.train.pretraining import pretrain

MEGABYTE = 1 << 20


def limit_memory(megabytes: int) -> None:
    """Limit the address space to its present size plus this many megabytes."""
    assert pretrain
    torch.ones(64, 64, requires_grad=True).mm(torch.ones(64, 64)).sum().backward()  # its threads
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    allowed = pages * resource.getpagesize() + megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (allowed, resource.RLIM_INFINITY))


if __name__ == "__main__":
    torch.set_num_threads(1)
    limits = sys.argv[1].split(",")
    limit_memory(int(limits[int(os.environ.get("RANK", "0"))]))
    main(sys.argv[2:])
