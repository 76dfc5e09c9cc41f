"""The Curves page: metrics of up to four runs, read again while they train."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.report.html import make_sections
from pipeline.view.server import Values
from pipeline.view.site import Tab
from train.artifacts.run import SUMMARY
from train.monitoring.metrics import METRICS
from train.monitoring.run_history import RunHistory
from train.monitoring.run_report import key_figures, read_histories
from train.monitoring.run_sections import CHARTS, TEXT_SECTIONS, thinned

POINTS = 500  # of a line


class CurvePages:
    """The curves of some runs. Raises InputError if a folder is not a run, or for more than 4."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = runs
        read_histories(runs)

    def tab(self) -> Tab:
        """The page."""
        template = "train.view/curves.html.jinja"
        return Tab(
            name="Curves", path="/curves", template=template, values=self.values, data=self.data
        )

    def values(self, _: Values) -> dict[str, Any]:
        """What the template shows: the page's data for its script, and the report's tables."""
        histories = read_histories(self._runs)
        return {
            "data": self.data({}),
            "figures": key_figures(histories),
            "sections": make_sections(TEXT_SECTIONS, histories),
        }

    def data(self, query: Values) -> Any:
        """All lines as plain values; only the version where the query has it already."""
        version = " ".join(_version(run) for run in self._runs)
        if query.get("version") == version:
            return {"version": version}
        histories = read_histories(self._runs)
        return {
            "version": version,
            "runs": [_run(history) for history in histories],
            "charts": [
                {
                    "name": chart.name,
                    "label": chart.label,
                    "percent": chart.is_percent,
                    "noisy": chart.is_noisy,
                    "lines": list(chart.lines(is_alone=len(histories) == 1).items()),
                }
                for chart in CHARTS
            ],
            "figures": key_figures(histories),
        }


def _run(history: RunHistory) -> dict[str, Any]:
    names = {name for chart in CHARTS for name in chart.lines(is_alone=True).values()}
    series = {}
    for name in sorted(names):
        steps, values = thinned(history.points(name), POINTS)
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


def _version(run: Path) -> str:
    """Changes with the file of metrics and the end of the run."""
    path = run / METRICS
    size = path.stat().st_size if path.exists() else 0
    return f"{size}{'!' if (run / SUMMARY).exists() else ''}"
