"""How long training stops for a checkpoint that is written in the background, and the watched step.

    python tests/benchmarks/checkpoint_stall.py [--preset bert-small] [--rounds 5]

A checkpoint in the background stops the step loop for the copy of weights and moments alone; the
same checkpoint written in place stops it for the copy, the files, their checksums and their sync.
Both are measured in turns; medians, and their ratio. Then the seconds of a small step with and
without what each step of several processes has for the report of stragglers.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.checkpoint import TrainState, remove_old_checkpoints, save_checkpoint
from clozeline.train.artifacts.checkpoint_writer import CheckpointWriter
from clozeline.train.artifacts.snapshot import take_snapshot
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.monitoring.local_time import LocalTime
from tests.benchmarks.training_speed import one_step
from tests.support.small_training import STILL
from tests.support.training_configs import training_config
from tests.test_step import make_batch


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


def steps(rounds: int) -> tuple[float, float]:
    """Median seconds of a small step, watched and not, in turns."""
    sides = []
    for is_watched in (True, False):
        model = BertForPretraining(STILL).train()
        if is_watched:
            words = model.encoder.embeddings.word_embeddings.weight
            LocalTime(model, words, torch.device("cpu"))
        sides.append((model, build_optimizer(model, training_config()), []))
    for _ in range(rounds):
        for model, optimizer, seconds in sides:
            start = time.perf_counter()
            one_step(model, optimizer, make_batch(), "fp32")
            seconds.append(time.perf_counter() - start)
    watched, bare = (statistics.median(seconds) for _, _, seconds in sides)
    return watched, bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="bert-small")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        behind, in_place = stalls(arguments.preset, arguments.rounds, Path(scratch))
    print(
        f"{arguments.preset}: the loop stops for {behind:.3f} s, written in place {in_place:.3f} s:"
    )
    print(f"  {behind / in_place:.2f} of the time")
    watched, bare = steps(100 * arguments.rounds)
    print(f"a small step, watched {watched:.6f} s, bare {bare:.6f} s: {watched / bare:.3f}")


if __name__ == "__main__":
    main()
