"""The sections of the report of runs: one function each, listed in SECTIONS.

A section gets all runs of the page, one to four; None leaves it out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from model.heads import count_parameters
from pipeline.report.charts import Series, draw_lines
from pipeline.report.html import Chart, Section, Table
from train.monitoring.run_history import UNIGRAM, Points, RunHistory

MOST_POINTS = 200  # of a line; longer histories are averaged
ROWS = 10  # of the table of losses

Runs = Sequence[RunHistory]


@dataclass(frozen=True, kw_only=True)
class MetricChart:
    """A chart of one metric: over steps, in training and held out."""

    name: str
    label: str
    is_percent: bool = False
    unigram: str = ""  # a third line to compare with
    is_noisy: bool = True  # may be smoothed

    def lines(self, *, is_alone: bool) -> dict[str, str]:
        """Metric names by kind of line; the unigram's only where a run is alone in the chart."""
        kinds = {"training": self.name, "held out": f"heldout/{self.name}"}
        return kinds | ({"unigram": self.unigram} if self.unigram and is_alone else {})


LOSS_CHARTS = (
    MetricChart(name="mlm_loss", label="masked-LM loss", unigram=UNIGRAM),
    MetricChart(name="nsp_loss", label="NSP loss"),
)
ACCURACY_CHARTS = (
    MetricChart(name="mlm_accuracy", label="masked-LM accuracy", is_percent=True),
    MetricChart(name="nsp_accuracy", label="NSP accuracy", is_percent=True),
)
OPTIMIZATION_CHARTS = (
    MetricChart(name="learning_rate", label="learning rate", is_noisy=False),
    MetricChart(name="gradient_norm", label="gradient norm"),
)
SPEED_CHARTS = (
    MetricChart(name="tokens_per_second", label="tokens/s"),
    MetricChart(name="data_wait", label="waiting for data", is_percent=True),
    MetricChart(name="mfu", label="MFU", is_percent=True),
)
CHARTS: Final = (*LOSS_CHARTS, *ACCURACY_CHARTS, *OPTIMIZATION_CHARTS, *SPEED_CHARTS)


def results(run: RunHistory) -> dict[str, str]:
    """How far the run got and what it reached; "-" for what was not measured."""
    speeds = run.points("tokens_per_second")[1]
    return {
        "state": "complete" if run.is_complete else "not complete",
        "last logged step": f"{run.step:,}",
        "parameters": f"{count_parameters(run.config.model):,}",
        "masked-LM loss": _number(run.last("mlm_loss")),
        "masked-LM loss, held out": _number(run.last("heldout/mlm_loss", 1)),
        "unigram loss, held out": _number(run.last(UNIGRAM, 1)),
        "masked-LM accuracy": _percent(run.last("mlm_accuracy")),
        "masked-LM accuracy, held out": _percent(run.last("heldout/mlm_accuracy", 1)),
        "NSP accuracy": _percent(run.last("nsp_accuracy")),
        "NSP accuracy, held out": _percent(run.last("heldout/nsp_accuracy", 1)),
        "tokens/s, median": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "MFU": _percent(run.last("mfu")),
    }


def _comparison(runs: Runs) -> Section | None:
    if len(runs) == 1:
        return None
    columns = [results(run) for run in runs]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Section(
        heading="Results",
        sentence="Training metrics are means over the last ten logged steps.",
        tables=[Table(heads=("", *(run.name for run in runs)), rows=rows), _losses_by_step(runs)],
    )


def _losses_by_step(runs: Runs) -> Table:
    """Mean loss in each tenth of the longest run."""
    ends = np.unique(np.linspace(0, max(run.step for run in runs), ROWS + 1).astype(int))
    rows = []
    for start, end in pairwise(ends):
        cells = []
        for run in runs:
            steps, losses = run.points("mlm_loss")
            inside = losses[(steps > start) & (steps <= end)]
            cells.append(_number(float(inside.mean()) if len(inside) else None))
        rows.append((f"{start + 1:,} to {end:,}", *cells))
    return Table(heads=("steps, mean loss", *(run.name for run in runs)), rows=rows)


def _differences(runs: Runs) -> Section | None:
    if len(runs) == 1:
        return None
    configs = [run.settings() for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    rows = [(name, *(config.get(name, "-") for config in configs)) for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    sentences = [
        "All other settings are equal." if rows else "The configs are equal.",
        *(f"{run.name}: {_data_against(runs[0], run)}." for run in runs[1:]),
    ]
    heads = ("setting", *(run.name for run in runs))
    return Section(
        heading="Differences",
        sentence=" ".join(sentences),
        tables=[Table(heads=heads, rows=rows, is_numeric=False)] if rows else [],
    )


def _data_against(first: RunHistory, other: RunHistory) -> str:
    """The step from which the runs read different batches, by the digests that both logged."""
    in_first, in_other = (
        {line["step"]: line["data_digest"] for line in run.lines if "data_digest" in line}
        for run in (first, other)
    )
    shared = sorted(in_first.keys() & in_other.keys())
    if not shared:
        return f"has no logged step in common with {first.name}, so the data cannot be compared"
    different = [step for step in shared if in_first[step] != in_other[step]]
    if not different:
        return (
            f"same data as {first.name} in all {len(shared):,} steps that both logged, up to "
            f"step {shared[-1]:,}"
        )
    same = [step for step in shared if step < different[0]]
    before = f"same up to step {same[-1]:,}" if same else "no earlier step in common"
    return f"different data from {first.name} from step {different[0]:,} on ({before})"


def _warnings(runs: Runs) -> Section:
    rows = [
        (f"{warning.step:,}", run.name, warning.words) for run in runs for warning in run.warnings
    ]
    columns = slice(None) if len(runs) > 1 else slice(0, None, 2)  # one run needs no name
    heads = ("step", "run", "warning")[columns]
    table = Table(heads=heads, rows=[row[columns] for row in rows], is_numeric=False)
    return Section(
        heading="Warnings",
        sentence="Each cause is listed once, at the step where it first appeared."
        if rows
        else "None.",
        tables=[table] if rows else [],
    )


def _losses(runs: Runs) -> Section:
    return Section(
        heading="Loss",
        sentence="In nats. The unigram loss is that of a model that knows only how frequent each "
        "token is, on the same held-out masks.",
        charts=_draw(runs, LOSS_CHARTS),
    )


def _accuracies(runs: Runs) -> Section:
    return Section(
        heading="Accuracy",
        sentence="Accuracy on masked tokens, and on next sentences, where chance is 50%.",
        charts=_draw(runs, ACCURACY_CHARTS),
    )


def _optimization(runs: Runs) -> Section:
    return Section(
        heading="Learning rate and gradient",
        sentence="The gradient norm is taken before clipping.",
        charts=_draw(runs, OPTIMIZATION_CHARTS),
    )


def _speed(runs: Runs) -> Section:
    return Section(
        heading="Speed",
        sentence="Tokens without padding; the fraction of time spent waiting for data; and the "
        "fraction of the device's peak FLOPs that the model used (MFU), where that peak is known.",
        charts=_draw(runs, SPEED_CHARTS),
    )


def _config(runs: Runs) -> Section:
    tables = [
        Table(heads=("setting", run.name), rows=list(run.settings().items()), is_numeric=False)
        for run in runs
    ]
    return Section(heading="Configuration", sentence="As recorded in run.json.", tables=tables)


def _draw(runs: Runs, charts: Sequence[MetricChart]) -> list[Chart]:
    return [drawn for chart in charts for drawn in _charts(runs, chart)]


def _charts(runs: Runs, chart: MetricChart) -> Iterator[Chart]:
    """One run: training, held-out and unigram values in one chart; several: a chart for each."""
    lines = chart.lines(is_alone=len(runs) == 1)
    if len(runs) == 1:
        series = {kind: runs[0].points(of) for kind, of in lines.items()}
        yield from _chart(chart.name, series, chart, chart.label)
        return
    for kind, of in lines.items():
        caption = chart.label if kind == "training" else f"{chart.label}, {kind}"
        series = {run.name: run.points(of) for run in runs}
        yield from _chart(of, series, chart, caption)


def _chart(
    name: str, series: dict[str, Points], chart: MetricChart, caption: str
) -> Iterator[Chart]:
    lines: Series = {
        kind: _dashed(thinned(points)) for kind, points in series.items() if len(points[0])
    }
    if lines:
        svg = draw_lines(
            name,
            lines,
            x_label="step",
            y_label=chart.label,
            percent=chart.is_percent,
            from_zero="loss" not in name,  # a loss changes far above 0
        )
        number = max(len(steps) for steps, _ in series.values())
        per_point = -(-number // MOST_POINTS)
        means = f", means of {per_point} logged steps" if per_point > 1 else ""
        yield Chart(svg=svg, caption=caption + means)


def _dashed(points: Points) -> Points:
    """A single point becomes a dash, which can be seen."""
    steps, values = points
    if len(steps) > 1:
        return points
    return np.array([steps[0] - 0.5, steps[0] + 0.5]), values.repeat(2)


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
    """At most so many points, means of neighbours, so that a long run fits on a page."""
    steps, values = points
    if len(steps) <= most:
        return points
    starts = np.arange(0, len(steps), -(-len(steps) // most))
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


#: Those whose content does not change while a run trains.
TEXT_SECTIONS: Final[tuple[Callable[[Runs], Section | None], ...]] = (_comparison, _differences)
#: In the order of the page.
SECTIONS: Final[tuple[Callable[[Runs], Section | None], ...]] = (
    *(*TEXT_SECTIONS, _warnings),
    *(_losses, _accuracies, _optimization, _speed, _config),
)
