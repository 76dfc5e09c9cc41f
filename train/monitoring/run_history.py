"""A training run read from its folder: its config and its logged metrics."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.train.artifacts.run import SUMMARY, RunConfig, read_run
from clozeline.train.monitoring.health import HealthWarning, find_warnings
from clozeline.train.monitoring.metrics import read_metrics

UNIGRAM = "heldout/unigram_loss"

Points = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps, values


@dataclass(frozen=True)
class RunHistory:
    """A run in any state: complete, still training or killed."""

    name: str
    config: RunConfig
    lines: list[dict[str, Any]]
    is_complete: bool  # summary.json is there

    @classmethod
    def of(cls, run: Path, name: str) -> "RunHistory":
        """Raises InputError if the folder is not a run, or a file of it cannot be read."""
        return cls(name, read_run(run), read_metrics(run), (run / SUMMARY).exists())

    @property
    def step(self) -> int:
        """The last logged step."""
        return max((line["step"] for line in self.lines), default=0)

    def points(self, name: str) -> Points:
        """The steps and values of a metric where it is finite."""
        points = [(line["step"], line[name]) for line in self.lines if name in line]
        columns = np.array(points, dtype=np.float64).reshape(-1, 2)
        columns = columns[np.isfinite(columns[:, 1])]
        return columns[:, 0], columns[:, 1]

    def last(self, name: str, number: int = 10) -> float | None:
        """The mean of a metric's newest values, since one is noisy; None if there are none."""
        values = self.points(name)[1]
        return float(values[-number:].mean()) if len(values) else None

    @cached_property
    def warnings(self) -> list[HealthWarning]:
        """The health warnings that the logged metrics give rise to."""
        training = self.config.training
        total_steps = None if training.budget else training.max_steps
        return find_warnings(self.lines, total_steps=total_steps)

    def settings(self) -> dict[str, str]:
        """Everything that determines the run, by name, as text."""
        parts = self.config.to_dict()
        flat = {
            f"{part}: {name.rstrip('_')}": _value(value)
            for part in ("training", "model", "data")
            for name, value in parts[part].items()
        }
        return flat | {
            name: _value(parts[name])
            for name in ("dataset_digest", "tokenizer_digest", "started_from")
        }


def _value(value: Any) -> str:
    return "none" if value is None else str(value)
