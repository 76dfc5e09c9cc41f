"""The Curves page: metrics of up to four runs, read again while they train."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from clozeline.pipeline.report.html import make_sections
from clozeline.pipeline.view.site import Tab, Values
from clozeline.train.artifacts.run import SUMMARY
from clozeline.train.monitoring.metrics import METRICS
from clozeline.train.monitoring.run_history import UNIGRAM, Points, RunHistory
from clozeline.train.view.run_results import SECTIONS, key_figures, read_histories

POINTS = 500  # of a line; longer histories are averaged


@dataclass(frozen=True, kw_only=True)
class MetricChart:
    """A chart of one metric: over steps, in training and held out."""

    name: str
    label: str
    note: str = ""
    is_percent: bool = False
    unigram: str = ""  # a third line to compare with
    is_noisy: bool = True  # may be smoothed

    def lines(self, *, is_alone: bool) -> dict[str, str]:
        """Metric names by kind of line; the unigram's only where a run is alone in the chart."""
        kinds = {"training": self.name, "held out": f"heldout/{self.name}"}
        return kinds | ({"unigram": self.unigram} if self.unigram and is_alone else {})


#: In the order of the page.
CHARTS: Final = (
    MetricChart(
        name="mlm_loss",
        label="masked-LM loss",
        note="In nats. The unigram loss is that of a model that knows only how frequent each token "
        "is, on the same held-out masks.",
        unigram=UNIGRAM,
    ),
    MetricChart(name="nsp_loss", label="NSP loss", note="In nats."),
    MetricChart(name="mlm_accuracy", label="masked-LM accuracy", is_percent=True),
    MetricChart(name="nsp_accuracy", label="NSP accuracy", note="Chance is 50%.", is_percent=True),
    MetricChart(name="learning_rate", label="learning rate", is_noisy=False),
    MetricChart(name="gradient_norm", label="gradient norm", note="Before clipping."),
    MetricChart(name="tokens_per_second", label="tokens/s", note="Without padding."),
    MetricChart(
        name="data_wait",
        label="waiting for data",
        note="Fraction of the time.",
        is_percent=True,
    ),
    MetricChart(
        name="straggler_wait",
        label="waiting for the slowest process",
        note="Fraction of the time; several processes.",
        is_percent=True,
    ),
    MetricChart(
        name="mfu",
        label="MFU",
        note="Fraction of the device's peak FLOPs that the model used.",
        is_percent=True,
    ),
)


def curve_tab(runs: Sequence[Path]) -> Tab:
    """The curves of some runs. Raises InputError if a folder is not a run."""
    read_histories(runs)
    return Tab(
        name="Curves",
        path="/curves",
        template="clozeline.train.view/curves.html.jinja",
        scripts=("clozeline.train.view/page.js", "clozeline.train.view/curves.js"),
        values=lambda _: _values(runs),
        data=lambda query: _data(runs, query),
    )


def _values(runs: Sequence[Path]) -> dict[str, Any]:
    """What the template shows: the data for its script, and tables."""
    histories = read_histories(runs)
    return {
        "data": _data(runs, {}),
        "figures": key_figures(histories),
        "sections": make_sections(SECTIONS, histories),
    }


def _data(runs: Sequence[Path], query: Values) -> Any:
    """All lines as plain values; only the version if the query already has it."""
    version = " ".join(map(_version, runs))
    if query.get("version") == version:
        return {"version": version}
    histories = read_histories(runs)
    is_alone = len(histories) == 1
    return {
        "version": version,
        "runs": [_run(history) for history in histories],
        "charts": [
            asdict(chart) | {"lines": list(chart.lines(is_alone=is_alone).items())}
            for chart in CHARTS
        ],
        "figures": key_figures(histories),
    }


def _run(history: RunHistory) -> dict[str, Any]:
    names = {name for chart in CHARTS for name in chart.lines(is_alone=True).values()}
    series = {}
    for name in sorted(names):
        steps, values = _thinned(history.points(name))
        if len(steps):
            series[name] = [
                [round(step, 1) for step in steps.tolist()],
                [float(f"{value:.6g}") for value in values.tolist()],
            ]
    return {
        "name": history.name,
        "complete": history.is_complete,
        "step": history.step,
        "series": series,
        "warnings": [{"step": w.step, "words": w.words} for w in history.warnings],
    }


def _thinned(points: Points) -> Points:
    """At most POINTS points, means of neighbours, so that a long run fits on a page."""
    steps, values = points
    if len(steps) <= POINTS:
        return points
    starts = np.arange(0, len(steps), -(-len(steps) // POINTS))
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _version(run: Path) -> str:
    """A text that changes with the metrics file and at the end of the run."""
    path = run / METRICS
    size = path.stat().st_size if path.exists() else 0
    return f"{size}{'!' if (run / SUMMARY).exists() else ''}"
