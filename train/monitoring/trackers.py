"""Sends the lines of metrics to Weights & Biases or MLflow, one tracked run per run.

{"mlm_loss": 6.2, "nsp_loss": 0.7, "learning_rate": 1e-3}
->  train/loss 6.9, train/mlm_loss 6.2, train/nsp_loss 0.7, train/learning_rate 0.001

RUN/trackers.json has the id of the tracked run, in which a resumed run continues. Where the numbers
go is decided by the tracker's own variables, such as WANDB_MODE and MLFLOW_TRACKING_URI.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.pipeline.common.packages import check_packages
from clozeline.train.artifacts.run import TRACKERS

Track = Literal["none", "wandb", "mlflow"]
PROJECT = "clozeline"  #: of W&B, and experiment of MLflow, unless their variables name another


def check_tracker(track: Track) -> None:
    """Raises InputError where the tracker's package is not installed."""
    if track != "none":
        check_packages(f"--track {track}", track)


def open_tracker(
    track: Track, run: Path, config: Mapping[str, Any], *, is_new: bool
) -> "Tracker | None":
    """The tracked run of this run, continued if it has one; None without tracking.

    A new run leaves the ids that `run` may hold alone until `remember`. Raises InputError where the
    tracker does not start, as without an account.
    """
    if track == "none":
        return None
    known = {} if is_new else _known_ids(run)
    kind = WandbRun if track == "wandb" else MlflowRun
    try:
        return kind(run, config, known.get(track))
    except Exception as error:  # each library has its own
        raise InputError(f"--track {track} does not start: {one_line(error)}") from error


def remember(run: Path, track: Track, tracker: "Tracker") -> None:
    """Note the tracked run in the run's folder, where a resumed run finds it."""
    write_json(run / TRACKERS, _known_ids(run) | {track: tracker.id})


def _known_ids(run: Path) -> dict[str, str]:
    """The id of the tracked run of each tracker. Raises InputError for a damaged file."""
    path = run / TRACKERS
    if not path.exists():
        return {}
    with json_values(path, "delete it") as known:
        return known


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics under names with a group, and the sum of both losses."""
    numbers = {
        name if "/" in name else f"train/{name}": float(value)
        for name, value in values.items()
        if not isinstance(value, str)
    }
    for group in ("train", "heldout"):
        if f"{group}/mlm_loss" in numbers:
            losses = (numbers.get(f"{group}/{name}", 0.0) for name in ("mlm_loss", "nsp_loss"))
            numbers[f"{group}/loss"] = sum(losses)
    return numbers


class WandbRun:
    """W&B ignores steps that it already has: those trained again after a resume."""

    def __init__(self, run: Path, config: Mapping[str, Any], known: str | None) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=known,
            resume="allow",
            dir=str(run),
            config=dict(config),
        )
        self.id: str = self._run.id

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)

    def close(self, *, is_failed: bool) -> None:
        self._run.finish(exit_code=int(is_failed))


class MlflowRun:
    """MLflow keeps both values of a step that is trained again, with their times."""

    def __init__(self, run: Path, config: Mapping[str, Any], known: str | None) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        if known is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            number = (
                experiment.experiment_id if experiment else self._client.create_experiment(name)
            )
            known = self._client.create_run(number, run_name=run.name).info.run_id
            params = [mlflow.entities.Param(key, str(value)) for key, value in config.items()]
            self._client.log_batch(known, params=params)
        else:
            self._client.update_run(known, status="RUNNING")
        self.id: str = known

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        milliseconds = round(time.time() * 1000)
        metrics = [Metric(name, value, milliseconds, step) for name, value in scalars.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, *, is_failed: bool) -> None:
        self._client.set_terminated(self.id, status="FAILED" if is_failed else "FINISHED")


Tracker = WandbRun | MlflowRun
