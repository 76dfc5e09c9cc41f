"""The chapter of one to four runs: curves, health warnings, comparison, configuration.

A run may be in any state: complete, still training or killed. A section function gets all runs,
and returns None to leave its section out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.model.heads import count_parameters
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.page import Chapter, Chart, Section, Table, make_sections
from clozeline.train.monitoring.run_history import UNIGRAM, Points, RunHistory

LONGEST_NAME = 20  # characters
POINTS = 300  # of a line; longer histories are averaged
SMOOTHING = 0.8  # weight of the values before, of a noisy metric with this many points at least
LEAST_TO_SMOOTH = 20

Runs = Sequence[RunHistory]


@dataclass(frozen=True, kw_only=True)
class MetricChart:
    """A chart of one metric over steps, in training and held out."""

    name: str
    label: str
    is_percent: bool = False
    unigram: str = ""  # a third line to compare with, where a run is alone in the chart
    is_noisy: bool = True  # is smoothed


#: In the order of the page.
CHARTS: Final = (
    MetricChart(
        name="mlm_loss",
        label="masked-LM loss in nats; the unigram loss is that of a model that knows only how "
        "frequent each token is, on the same held-out masks",
        unigram=UNIGRAM,
    ),
    MetricChart(name="nsp_loss", label="NSP loss in nats"),
    MetricChart(name="mlm_accuracy", label="masked-LM accuracy", is_percent=True),
    MetricChart(name="nsp_accuracy", label="NSP accuracy; chance is 50%", is_percent=True),
    MetricChart(name="learning_rate", label="learning rate", is_noisy=False),
    MetricChart(name="gradient_norm", label="gradient norm, before clipping"),
    MetricChart(name="tokens_per_second", label="tokens/s, without padding"),
    MetricChart(name="data_wait", label="part of the time that waits for data", is_percent=True),
    MetricChart(name="mfu", label="MFU: part of the device's peak FLOPs", is_percent=True),
)


def run_chapter(runs: Sequence[Path]) -> Chapter:
    """Raises InputError if a folder is not a run, or a file of it cannot be read."""
    histories = [RunHistory.of(run, name) for run, name in zip(runs, _names(runs), strict=True)]
    return Chapter(
        name="Run" if len(runs) == 1 else "Runs",
        figures=_key_figures(histories),
        sections=make_sections(SECTIONS, histories),
    )


def _names(runs: Sequence[Path]) -> list[str]:
    """The shortest path endings that distinguish the runs, cut to what fits beside a chart."""
    paths = [run.resolve().parts for run in runs]
    depths = range(1, 1 + max(map(len, paths)))
    choices = [["/".join(parts[-depth:]) for parts in paths] for depth in depths]
    names = next((names for names in choices if len({*names}) == len(names)), choices[0])
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
    charts = (_draw(chart, runs) for chart in CHARTS)
    return Section(
        heading="Curves",
        sentence="Noisy metrics are smoothed; behind the lines are the values themselves.",
        charts=[chart for chart in charts if chart],
    )


def _draw(chart: MetricChart, runs: Runs) -> Chart | None:
    lines = list(lines_of(chart, runs))
    if not lines:
        return None
    return draw_lines(
        chart.name, lines, caption=chart.label, x_label="step", percent=chart.is_percent
    )


def lines_of(chart: MetricChart, runs: Runs) -> Iterator[Line]:
    """Training, dashed held-out and dotted unigram lines of each run; none that has no values."""
    is_alone = len(runs) == 1
    kinds = {"training": chart.name, "held out": f"heldout/{chart.name}"}
    if chart.unigram and is_alone:
        kinds["unigram"] = chart.unigram
    for number, run in enumerate(runs):
        for kind, name in kinds.items():
            steps, values = _thinned(run.points(name))
            if not len(steps):
                continue
            colour = list(kinds).index(kind) if is_alone else number
            if chart.is_noisy and kind == "training" and len(steps) >= LEAST_TO_SMOOTH:
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
        tables=[Table(heads=("", *(run.name for run in runs)), rows=rows)],
    )


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


def _config(runs: Runs) -> Section:
    tables = [
        Table(heads=("setting", run.name), rows=list(run.settings().items()), is_numeric=False)
        for run in runs
    ]
    return Section(heading="Configuration", sentence="As recorded in run.json.", tables=tables)


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[Runs], Section | None], ...]] = (
    _health,
    _comparison,
    _curves,
    _differences,
    _config,
)
