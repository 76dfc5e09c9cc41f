"""Two processes, of which rank LOST stops answering after the first collective.

RANK=... WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... lost_rank.py SIGKILL|SIGSTOP SECONDS LOST
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from clozeline.pipeline.common.errors import LostProcessError
from clozeline.train.engine.distributed import join_world
from clozeline.train.engine.lost_process import lost_process_in_one_line

if __name__ == "__main__":
    patience = timedelta(seconds=float(sys.argv[2]))
    try:
        with join_world(patience=patience) as world, lost_process_in_one_line(world):
            world.sum(torch.ones(1))
            if world.rank == int(sys.argv[3]):
                os.kill(os.getpid(), getattr(signal, sys.argv[1]))
            world.sum(torch.ones(1))
    except LostProcessError as error:
        print(error)
        sys.exit(error.exit_code)
