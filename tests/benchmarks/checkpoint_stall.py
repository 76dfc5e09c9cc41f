"""How long training stops for a checkpoint that is written in the background.

    python tests/benchmarks/checkpoint_stall.py [--preset bert-small] [--rounds 5]

A checkpoint in the background stops the step loop for the copy of weights and moments alone; the
same checkpoint written in place stops it for the copy, the files, their checksums and their sync.
Both are measured in turns; medians, their ratio, and that to an ordinary step.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from clozeline.model.config import BertConfig, preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.memory import disable_malloc_trim
from clozeline.pipeline.config import DataConfig
from clozeline.train.artifacts.checkpoint import TrainState, remove_old_checkpoints, save_checkpoint
from clozeline.train.artifacts.checkpoint_writer import CheckpointWriter
from clozeline.train.artifacts.snapshot import take_snapshot
from clozeline.train.data.batch import LoadedBatch
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.estimate.step_cost import longest_batch
from tests.benchmarks.training_speed import one_step
from tests.support.training_configs import training_config


def stalls(name: str, rounds: int, folder: Path) -> tuple[float, float]:
    """Median seconds in which the loop stands still: in the background, and written in place."""
    model = BertForPretraining(preset(name))
    optimizer = build_optimizer(model, training_config())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    behind, in_place = [], []
    with CheckpointWriter(folder / "behind", keep=1) as writer:
        for step in range(1, rounds + 1):
            state = TrainState(step=step)
            start = time.perf_counter()
            writer.save(take_snapshot(model, optimizer), state)
            behind.append(time.perf_counter() - start)
            writer.wait()
            start = time.perf_counter()
            save_checkpoint(folder / "in-place", take_snapshot(model, optimizer), state)
            in_place.append(time.perf_counter() - start)
            remove_old_checkpoints(folder / "in-place", keep=1)
    return statistics.median(behind), statistics.median(in_place)


def ordinary_step(name: str, rounds: int) -> float:
    model = BertForPretraining(preset(name)).train()
    optimizer = build_optimizer(model, training_config())
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        one_step(model, optimizer, eight_rows(preset(name)), "fp32")
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def eight_rows(config: BertConfig) -> LoadedBatch:
    return longest_batch(8, DataConfig(max_seq_length=128), unpadded=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="bert-small")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    disable_malloc_trim()  # as the trainer does
    with tempfile.TemporaryDirectory() as scratch:
        behind, in_place = stalls(arguments.preset, arguments.rounds, Path(scratch))
    step = ordinary_step(arguments.preset, arguments.rounds)
    print(
        f"{arguments.preset}: the loop stops for {behind:.3f} s, written in place {in_place:.3f}: "
        f"{behind / in_place:.2f} of the time; a step of 8 rows takes {step:.3f} s: "
        f"{behind / step:.2f} of a step, in place {in_place / step:.2f}"
    )


if __name__ == "__main__":
    main()
