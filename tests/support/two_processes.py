"""Several trainings in one pair of torchrun processes, because importing torch is slow.

    torchrun ... tests/support/two_processes.py JOBS.json

A job is a dictionary: `shards` (each process puts its rank for "{rank}"), `out`, `changes` for
`small_training.train`, `model` with changes of the model; with `copy_of` and `step` it resumes from
that step of another run; `machine` is the number of processes of a machine, all by default;
`folder`, also with "{rank}", is where relative paths begin; `signal` is sent to rank 1 before its
first restart; pools of examples have `pool_rows`.
If rank r refuses, its message is in `OUT.refused.r`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.train.data import order
from clozeline.train.engine.distributed import join_world
from clozeline.train.pretraining import stop_and_budget
from tests.support.small_training import STILL, go_back, train

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
#: Fewer than in training, so that a few steps show that the processes agree.
STEPS_BETWEEN_SYNCS = 10
POOL_ROWS = order.POOL_ROWS
MODEL = replace(STILL, num_hidden_layers=2, max_position_embeddings=32)


def run_jobs(jobs: list[dict[str, Any]], folder: Path, *options: str) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs, default=str))
    done = subprocess.run(
        [*TORCHRUN, *options, "tests/support/two_processes.py", str(folder / "jobs.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def do(job: dict[str, Any]) -> None:
    rank, out = int(os.environ["RANK"]), Path(job["out"])
    if "folder" in job:
        os.chdir(job["folder"].format(rank=rank))
    os.environ["LOCAL_WORLD_SIZE"] = str(job.get("machine", os.environ["WORLD_SIZE"]))
    if "copy_of" in job and rank == 0:  # the other process waits for the result
        go_back(shutil.copytree(job["copy_of"], out), job["step"])
    is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    handle = send(*job["signal"]) if "signal" in job and is_first_life else None
    order.POOL_ROWS = job.get("pool_rows", POOL_ROWS)
    try:
        shards, model = job["shards"].format(rank=rank), replace(MODEL, **job.get("model", {}))
        resume = "copy_of" in job or "resume" in job
        train(Path(shards), out, model=model, resume=resume, **job["changes"])
    except (InputError, SystemExit) as refusal:
        Path(f"{out}.refused.{rank}").write_text(f"{type(refusal).__name__} {refusal}")
    if handle:
        handle.remove()


def send(kind: str, forward: int) -> Any:
    """One signal to rank 1, at the end of the n-th forward pass of the whole model."""
    passes = count(1)

    def hook(module: torch.nn.Module, *_: Any) -> None:
        is_whole = type(module).__name__ == "BertForPretraining"
        if is_whole and next(passes) == forward and os.environ["RANK"] == "1":
            os.kill(os.getpid(), getattr(signal, kind))

    return torch.nn.modules.module.register_module_forward_hook(hook)


if __name__ == "__main__":
    stop_and_budget.MAX_STEPS_BETWEEN_SYNCS = STEPS_BETWEEN_SYNCS
    with join_world():
        for each in json.loads(Path(sys.argv[1]).read_text()):
            do(each)
    # A thread of gloo that lets go of a tensor while the interpreter exits aborts the process.
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    assert not any("gloo" in name for name in threads), threads
