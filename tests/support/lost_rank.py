"""Pairs of processes, of which one stops answering after the first collective.

    lost_rank.py SIGKILL|SIGSTOP,SECONDS,LOST,PORT ...

They are forked, as importing torch takes long. Prints a JSON list of the exit code and the message
of each other process.
"""

import json
import multiprocessing
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


def work(rank, kind, seconds, lost, port, said):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ.update(place, RANK=str(rank), LOCAL_RANK="0")
    patience = timedelta(seconds=float(seconds))
    try:
        with join_world(patience=patience) as world, lost_process_in_one_line(world):
            world.sum(torch.ones(1))
            if world.rank == int(lost):
                os.kill(os.getpid(), getattr(signal, kind))
            world.sum(torch.ones(1))
    except LostProcessError as error:
        said.send(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    fork, pairs, found = multiprocessing.get_context("fork"), [], []
    for pair in sys.argv[1:]:
        words, (hears, says) = pair.split(","), fork.Pipe(duplex=False)
        ranks = [fork.Process(target=work, args=(rank, *words, says)) for rank in (0, 1)]
        pairs.append((ranks, int(words[2]), hears))
        for process in ranks:
            process.start()
    for ranks, lost, hears in pairs:
        ranks[1 - lost].join(60)
        found.append([ranks[1 - lost].exitcode, hears.recv() if hears.poll() else ""])
        for process in ranks:
            process.kill()
    print(json.dumps(found))
