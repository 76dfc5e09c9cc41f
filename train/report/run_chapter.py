"""The chapter of one to four runs: health warnings, comparison, curves.

A run may be in any state: complete, still training or killed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.model.heads import count_parameters
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.page import Chapter, Section, table_of
from clozeline.train.artifacts.run import SUMMARY, RunConfig, read_run
from clozeline.train.monitoring.health import find_warnings
from clozeline.train.monitoring.metrics import read_metrics

LONGEST_NAME = 20  # characters
POINTS = 100  # of a line, at most
UNIGRAM = "heldout/unigram_loss"

Points = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps, values

#: Metrics in the order of the page: caption, and whether it is a fraction.
CHARTS: Final[Mapping[str, tuple[str, bool]]] = {
    "mlm_loss": ("masked-LM loss in nats", False),
    "nsp_loss": ("NSP loss in nats", False),
    "mlm_accuracy": ("masked-LM accuracy", True),
    "nsp_accuracy": ("NSP accuracy; chance is 50%", True),
    "learning_rate": ("learning rate", False),
    "gradient_norm": ("gradient norm, before clipping", False),
    "tokens_per_second": ("tokens/s, without padding", False),
    "data_wait": ("share of the time spent waiting for data", True),
    "mfu": ("MFU: share of the device's peak FLOPs", True),
}


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

    def last(self, name: str, form: str, number: int = 10) -> str:
        """The mean of a metric's newest values, since one is noisy; "-" if there are none."""
        values = self.points(name)[1]
        return format(values[-number:].mean(), form) if len(values) else "-"

    def warnings(self) -> list[str]:
        """The last health warning of each cause that the logged metrics give rise to."""
        training = self.config.training
        total_steps = None if training.budget else training.max_steps
        warnings = find_warnings(self.lines, total_steps=total_steps)
        last = {warning.cause: warning for warning in warnings}
        return [f"{self.name}, {warning}" for warning in last.values()]

    def settings(self) -> dict[str, str]:
        """Everything that determines the run, by name, as text."""
        parts = self.config.to_dict()
        values = {
            f"{part}: {name.rstrip('_')}": value
            for part in ("training", "model", "data")
            for name, value in parts[part].items()
        }
        values |= {x: parts[x] for x in ("dataset_digest", "tokenizer_digest", "started_from")}
        return {name: "none" if value is None else str(value) for name, value in values.items()}


def run_chapter(folders: Sequence[Path]) -> Chapter:
    """Raises InputError if a folder is not a run, or a file of it cannot be read."""
    runs = [RunHistory.of(run, name) for run, name in zip(folders, _names(folders), strict=True)]
    if len(runs) > 1:
        return Chapter(name="Runs", figures=[], sections=list(_sections(runs)))
    figures, config = _results(runs[0]), runs[0].config
    figures["dataset digest"] = config.dataset_digest
    figures["tokenizer digest"] = config.tokenizer_digest
    measured = [(name, value) for name, value in figures.items() if value != "-"]
    return Chapter(name="Run", figures=measured, sections=list(_sections(runs)))


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of the folders, cut to what fits beside a chart, and numbered if two are equal."""
    names = [folder.resolve().name for folder in folders]
    end = slice(1 - LONGEST_NAME, None)
    short = [name if len(name) <= LONGEST_NAME else "…" + name[end] for name in names]
    is_unique = len({*short}) == len(short)
    return short if is_unique else [f"{i}: {name}" for i, name in enumerate(short, start=1)]


def _results(run: RunHistory) -> dict[str, str]:
    """How far the run got and what it reached; "-" for what was not measured."""
    speeds, training = run.points("tokens_per_second")[1], run.config.training
    return {
        "state": "complete" if run.is_complete else "not complete",
        "last logged step": f"{run.step:,} of {training.for_ or f'{training.max_steps:,}'}",
        "parameters": f"{count_parameters(run.config.model):,}",
        "masked-LM loss": run.last("mlm_loss", ".3f"),
        "masked-LM loss, held out": run.last("heldout/mlm_loss", ".3f", 1),
        "unigram loss, held out": run.last(UNIGRAM, ".3f", 1),
        "masked-LM accuracy": run.last("mlm_accuracy", ".1%"),
        "masked-LM accuracy, held out": run.last("heldout/mlm_accuracy", ".1%", 1),
        "NSP accuracy": run.last("nsp_accuracy", ".1%"),
        "NSP accuracy, held out": run.last("heldout/nsp_accuracy", ".1%", 1),
        "tokens/s, median": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "MFU": run.last("mfu", ".1%"),
    }


def _sections(runs: Sequence[RunHistory]) -> Iterator[Section]:
    """In the order of the page."""
    if warnings := [warning for run in runs for warning in run.warnings()]:
        sentence = "What the metrics warn of: the last warning of each cause."
        yield Section(heading="Health", sentence=sentence, warnings=warnings)
    if len(runs) > 1:
        sentence = "Training metrics are means over the last ten logged steps."
        table = table_of("metric", {run.name: _results(run) for run in runs})
        table = replace(table, rows=[row for row in table.rows if {*row[1:]} != {"-"}])
        yield Section(heading="Results", sentence=sentence, tables=[table])
    yield _curves(runs)
    if len(runs) > 1:
        table = table_of("setting", {run.name: run.settings() for run in runs})
        rows = [row for row in table.rows if len({*row[1:]}) > 1]
        table = replace(table, rows=rows, is_numeric=False)
        sentence = "All other settings are equal." if table.rows else "All settings are equal."
        yield Section(heading="Differences", sentence=sentence, tables=[table])


def _curves(runs: Sequence[RunHistory]) -> Section:
    charts = []
    for metric, (caption, is_percent) in CHARTS.items():
        if lines := list(lines_of(metric, runs)):
            chart = draw_lines(metric, lines, caption=caption, x_label="step", percent=is_percent)
            charts.append(chart)
    dashed = "" if len(runs) == 1 else "Dashed lines are of held-out examples. "
    return Section(
        heading="Curves",
        sentence=f"{dashed}Where a run has logged more than {POINTS} steps, each point is the mean "
        "of neighbours.",
        charts=charts,
    )


def lines_of(metric: str, runs: Sequence[RunHistory]) -> Iterator[Line]:
    """Training, dashed held-out and dotted unigram lines of each run; none that has no values."""
    is_alone = len(runs) == 1
    kinds = {"training": metric, "held out": f"heldout/{metric}"}
    if metric == "mlm_loss" and is_alone:
        kinds["token frequencies alone"] = UNIGRAM
    for number, run in enumerate(runs):
        for kind_number, (kind, name) in enumerate(kinds.items()):
            steps, values = _averaged(run.points(name))
            if not len(steps):
                continue
            of_run = run.name if kind == "training" else ""
            yield Line(
                x=steps,
                y=values,
                label=kind if is_alone else of_run,
                number=kind_number if is_alone else number,
                style=("-", "--", ":")[kind_number],
                marker="o" if kind == "held out" or len(steps) == 1 else "",
            )


def _averaged(points: Points) -> Points:
    """At most POINTS points, means of neighbours: a noisy metric is smooth, a long run fits."""
    steps, values = points
    if len(steps) <= POINTS:
        return points
    starts = np.arange(0, len(steps), -(-len(steps) // POINTS))
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts
