"""The chapter of one to four runs: curves, health warnings, comparison.

A run may be in any state: complete, still training or killed. A section function gets all runs,
and returns None to leave its section out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.model.heads import count_parameters
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.page import Chapter, Section, Table, make_sections
from clozeline.train.monitoring.run_history import UNIGRAM, Points, RunHistory

LONGEST_NAME = 20  # characters
POINTS = 300  # of a line; longer histories are averaged
SMOOTHING = 0.8  # weight of the values before, of a noisy metric with this many points at least
LEAST_TO_SMOOTH = 20

Runs = Sequence[RunHistory]


#: Metrics in the order of the page: caption, and whether it is a fraction.
CHARTS: Final[Mapping[str, tuple[str, bool]]] = {
    "mlm_loss": ("masked-LM loss in nats", False),
    "nsp_loss": ("NSP loss in nats", False),
    "mlm_accuracy": ("masked-LM accuracy", True),
    "nsp_accuracy": ("NSP accuracy; chance is 50%", True),
    "learning_rate": ("learning rate", False),
    "gradient_norm": ("gradient norm, before clipping", False),
    "tokens_per_second": ("tokens/s, without padding", False),
    "data_wait": ("part of the time that waits for data", True),
    "mfu": ("MFU: part of the device's peak FLOPs", True),
}


def run_chapter(runs: Sequence[Path]) -> Chapter:
    """Raises InputError if a folder is not a run, or a file of it cannot be read."""
    histories = [RunHistory.of(run, name) for run, name in zip(runs, _names(runs), strict=True)]
    return Chapter(
        name="Run" if len(runs) == 1 else "Runs",
        figures=_key_figures(histories),
        sections=make_sections(SECTIONS, histories),
    )


def _names(runs: Sequence[Path]) -> list[str]:
    """The names of the folders, cut to what fits beside a chart, and numbered if two are equal."""
    names = [run.resolve().name for run in runs]
    end = slice(1 - LONGEST_NAME, None)
    short = [name if len(name) <= LONGEST_NAME else "…" + name[end] for name in names]
    is_unique = len({*short}) == len(short)
    return short if is_unique else [f"{i}: {name}" for i, name in enumerate(short, start=1)]


def _key_figures(runs: Runs) -> list[tuple[str, str]]:
    """Name and value of what matters most; empty for several runs, which have a table."""
    if len(runs) > 1:
        return []
    [run] = runs
    training = run.config.training
    figures = _results(run)
    figures["last logged step"] += f" of {training.for_ or f'{training.max_steps:,}'}"
    figures["dataset digest"] = run.config.dataset_digest
    figures["tokenizer digest"] = run.config.tokenizer_digest
    return [(name, value) for name, value in figures.items() if value != "-"]


def _results(run: RunHistory) -> dict[str, str]:
    """How far the run got and what it reached; "-" for what was not measured."""

    def last(name: str, form: str, number: int = 10) -> str:
        value = run.last(name, number)
        return "-" if value is None else format(value, form)

    speeds = run.points("tokens_per_second")[1]
    return {
        "state": "complete" if run.is_complete else "not complete",
        "last logged step": f"{run.step:,}",
        "parameters": f"{count_parameters(run.config.model):,}",
        "masked-LM loss": last("mlm_loss", ".3f"),
        "masked-LM loss, held out": last("heldout/mlm_loss", ".3f", 1),
        "unigram loss, held out": last(UNIGRAM, ".3f", 1),
        "masked-LM accuracy": last("mlm_accuracy", ".1%"),
        "masked-LM accuracy, held out": last("heldout/mlm_accuracy", ".1%", 1),
        "NSP accuracy": last("nsp_accuracy", ".1%"),
        "NSP accuracy, held out": last("heldout/nsp_accuracy", ".1%", 1),
        "tokens/s, median": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "MFU": last("mfu", ".1%"),
    }


def _health(runs: Runs) -> Section | None:
    warnings = [
        f"{run.name}, step {warning.step:,}: {warning.words}"
        for run in runs
        for warning in run.warnings
    ]
    if not warnings:
        return None
    sentence = "What the metrics warn of, once for each cause."
    return Section(heading="Health", sentence=sentence, warnings=warnings)


def _curves(runs: Runs) -> Section:
    charts = []
    for metric, (caption, is_percent) in CHARTS.items():
        if lines := list(lines_of(metric, runs)):
            chart = draw_lines(metric, lines, caption=caption, x_label="step", percent=is_percent)
            charts.append(chart)
    return Section(
        heading="Curves",
        sentence="Noisy metrics are smoothed; behind the lines are the values themselves.",
        charts=charts,
    )


def lines_of(metric: str, runs: Runs) -> Iterator[Line]:
    """Training, dashed held-out and dotted unigram lines of each run; none that has no values."""
    is_alone = len(runs) == 1
    kinds = {"training": metric, "held out": f"heldout/{metric}"}
    if metric == "mlm_loss" and is_alone:
        kinds["token frequencies alone"] = UNIGRAM
    for number, run in enumerate(runs):
        for kind, name in kinds.items():
            steps, values = _thinned(run.points(name))
            if not len(steps):
                continue
            colour = list(kinds).index(kind) if is_alone else number
            is_noisy = kind == "training" and metric != "learning_rate"
            if is_noisy and len(steps) >= LEAST_TO_SMOOTH:
                yield Line(x=steps, y=values, number=colour, is_faint=True)
                values = _smooth(values)
            yield Line(
                x=steps,
                y=values,
                label=kind if is_alone else f"{run.name}, {kind}",
                number=colour,
                style="-" if kind == "training" else "--" if kind == "held out" else ":",
                marker="o" if kind == "held out" or len(steps) == 1 else "",
            )


def _thinned(points: Points) -> Points:
    """At most POINTS points, means of neighbours, so that a long run fits on a page."""
    steps, values = points
    if len(steps) <= POINTS:
        return points
    starts = np.arange(0, len(steps), -(-len(steps) // POINTS))
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential mean without the bias of its start (Kingma & Ba 2015, section 3)."""
    total, weight, means = 0.0, 0.0, []
    for value in values:
        total = SMOOTHING * total + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + 1 - SMOOTHING
        means.append(total / weight)
    return np.array(means)


def _comparison(runs: Runs) -> Section | None:
    if len(runs) == 1:
        return None
    columns = [_results(run) for run in runs]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Section(
        heading="Results",
        sentence="Training metrics are means over the last ten logged steps.",
        tables=[Table(heads=("metric", *(run.name for run in runs)), rows=rows)],
    )


def _settings(runs: Runs) -> Section | None:
    if len(runs) == 1:
        return None
    configs = [run.settings() for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    rows = [(name, *(config.get(name, "-") for config in configs)) for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    rows.append(("data read", "-", *(_data_against(runs[0], run) for run in runs[1:])))
    return Section(
        heading="Differences",
        sentence="All other settings are equal.",
        tables=[Table(heads=("setting", *(run.name for run in runs)), rows=rows, is_numeric=False)],
    )


def _data_against(first: RunHistory, other: RunHistory) -> str:
    """The first step that is known to have read other data, by the digests that both logged."""
    in_first, in_other = (
        {line["step"]: line["data_digest"] for line in run.lines if "data_digest" in line}
        for run in (first, other)
    )
    shared = sorted(in_first.keys() & in_other.keys())
    different = next((step for step in shared if in_first[step] != in_other[step]), None)
    if different is not None:
        return f"differs from {first.name} at step {different:,}"
    return f"the same up to step {shared[-1]:,}" if shared else "not known"


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[Runs], Section | None], ...]] = (
    _health,
    _comparison,
    _curves,
    _settings,
)
