"""Sends the metrics of a run to Weights & Biases or MLflow, while it trains or afterwards.

    clozeline pretrain work/shards --out work/run & python examples/track_run.py work/run wandb

It ends when the run is complete. The trackers' own variables say where the numbers go: WANDB_MODE,
WANDB_PROJECT, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME. Install `wandb` or `mlflow` first.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from clozeline.train.artifacts.run import RUN, SUMMARY, read_run
from clozeline.train.monitoring.metrics import read_metrics

POLL_SECONDS = 5.0


def lines_of(run: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The step and the numbers of each line, as they come; a resumed run repeats no step."""
    sent = 0
    while True:
        is_complete, lines = (run / SUMMARY).exists(), read_metrics(run)
        for line in lines[sent:]:
            numbers = {k: v for k, v in line.items() if k != "step" and not isinstance(v, str)}
            yield line["step"], {k if "/" in k else f"train/{k}": v for k, v in numbers.items()}
        sent = max(sent, len(lines))
        if is_complete:
            return
        time.sleep(POLL_SECONDS)


def to_wandb(run: Path) -> None:
    import wandb

    config = read_run(run).training.to_dict()
    with wandb.init(name=run.name, dir=str(run), config=config) as tracked:
        for step, numbers in lines_of(run):
            tracked.log(numbers, step=step)


def to_mlflow(run: Path) -> None:
    import mlflow

    with mlflow.start_run(run_name=run.name):
        mlflow.log_params(read_run(run).training.to_dict())
        for step, numbers in lines_of(run):
            mlflow.log_metrics(numbers, step=step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("tracker", choices=("wandb", "mlflow"))
    arguments = parser.parse_args()
    while not (arguments.run / RUN).exists():
        time.sleep(POLL_SECONDS)
    send = to_wandb if arguments.tracker == "wandb" else to_mlflow
    send(arguments.run)


if __name__ == "__main__":
    main()
