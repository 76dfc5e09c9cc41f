"""The mean of a run's last checkpoints, as a run that evaluate, finetune, export and --from take.

    python examples/average_checkpoints.py work/run work/average --last 5

Weights averaged along the way are often better than the last ones, as if the learning rate had been
lowered (Izmailov et al. 2018). Train with --keep to have enough checkpoints. An average has no
optimizer state: another run can start from it, but it cannot be resumed.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from clozeline import load_run
from clozeline.train.artifacts.checkpoint import (
    Snapshot,
    list_checkpoints,
    load_weights,
    read_state,
    save_checkpoint,
    step_of,
)
from clozeline.train.artifacts.run import write_run, write_summary


def mean_of(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of each weight, taken in float64 and rounded once to the weight's own dtype."""
    sums: dict[str, Tensor] = {}
    for folder in checkpoints:
        weights = load_weights(folder)
        for name, weight in weights.items():
            sums[name] = sums[name] + weight.double() if name in sums else weight.double()
    return {name: (sums[name] / len(checkpoints)).to(x.dtype) for name, x in weights.items()}


def main(run: Path, out: Path, last: int = 5) -> None:
    """Write the mean of the newest `last` checkpoints of `run` to the new folder `out`."""
    config, tokenizer, _ = load_run(run)
    checkpoints = list_checkpoints(run)[-last:]
    if len(checkpoints) < last:
        raise SystemExit(f"{run} has only {len(checkpoints)} checkpoints; give a smaller --last.")
    if out.exists():
        raise SystemExit(f"{out} exists; give another folder.")
    state = replace(read_state(checkpoints[-1]), heldout_loss=None)
    write_run(out, config, tokenizer)
    save_checkpoint(out, Snapshot(weights=mean_of(checkpoints), moments={}), state)
    write_summary(out, state.step, None)
    steps = ", ".join(str(step_of(folder)) for folder in checkpoints)
    print(f"mean of the weights of steps {steps}: {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--last", type=int, default=5)
    main(**vars(parser.parse_args()))
