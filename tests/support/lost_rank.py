"""Pairs of processes, of which one stops answering after the first collective.

    lost_rank.py SIGKILL|SIGSTOP,SECONDS,LOST,waits|sums,PORT ...

The other one sums, which fails after as many seconds, or waits for ever, as for a kernel of NCCL.
They are forked, as importing torch takes long. Prints a JSON list of the exit code and the message
of each other process.
"""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from clozeline.pipeline.common.errors import LostProcessError
from clozeline.train.engine.distributed import join_world
from clozeline.train.engine.lost_process import lost_process_in_one_line


def work(rank, kind, seconds, lost, then, port, said):
    os.dup2(said.fileno(), 2)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ.update(place, RANK=str(rank), LOCAL_RANK="0")
    patience = timedelta(seconds=float(seconds))
    try:
        with join_world(patience=patience) as world, lost_process_in_one_line(world):
            world.sum(torch.ones(1))
            if world.rank == int(lost):
                os.kill(os.getpid(), getattr(signal, kind))
            threading.Event().wait() if then == "waits" else world.sum(torch.ones(1))
    except LostProcessError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    fork, pairs, found = multiprocessing.get_context("fork"), [], []
    for pair in sys.argv[1:]:
        words, said = pair.split(","), tempfile.TemporaryFile("w+")  # noqa: SIM115
        ranks = [fork.Process(target=work, args=(rank, *words, said)) for rank in (0, 1)]
        pairs.append((ranks, int(words[2]), said))
        for process in ranks:
            process.start()
    for ranks, lost, said in pairs:
        ranks[1 - lost].join(60)
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.startswith("Error: ")]
        found.append([ranks[1 - lost].exitcode, "\n".join(lines)])
        for process in ranks:
            process.kill()
    print(json.dumps(found))
