"""Accuracy over the number of training rows, as a table and as a figure; what pretraining gained.

 rows      fine-tuned    from scratch    bag-of-words
  100      84.1 ± 1.2      55.0 ± 2.3      71.9 ± 1.8
1,000      91.0 ± 0.3      80.2 ± 0.9      85.6 ± 0.4
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from clozeline.train.finetuning.results import SHOWN, ModelResult, Start
from clozeline.train.labelled.scores import Scores, mean_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: dict[Start, str] = {
    "pretrained": "#1f5fbf",
    "from_scratch": "#d9822b",
    "bag_of_words": "#7a7a7a",
}
MARKERS: dict[Start, str] = {"pretrained": "o", "from_scratch": "s", "bag_of_words": "^"}
FALLING = 0.99  #: a held-out loss below this share of the one before it is still falling


@dataclass(frozen=True, kw_only=True)
class Point:
    """One model trained on `examples` rows: its accuracy for each seed."""

    start: Start
    examples: int
    accuracies: tuple[float, ...]  # one per seed
    also: dict[str, tuple[float, ...]]  # on other test sets, by source

    def accuracies_on(self, source: str | None) -> tuple[float, ...]:
        """The accuracy of each seed on another test set; None: on the test rows."""
        return self.accuracies if source is None else self.also[source]

    def mean(self, source: str | None = None) -> float:
        """Mean accuracy over the seeds, on the test rows or on another test set."""
        return float(np.mean(self.accuracies_on(source)))

    def deviation(self, source: str | None = None) -> float:
        """Sample standard deviation over the seeds; 0 for a single seed."""
        found = self.accuracies_on(source)
        return float(np.std(found, ddof=1)) if len(found) > 1 else 0.0


def points_of(results: Sequence[ModelResult[Scores]]) -> list[Point]:
    """The accuracies over seeds, by number of rows, then by model as in SHOWN."""
    order = list(SHOWN)
    results = sorted(results, key=lambda r: (r.key.examples, order.index(r.key.start)))
    points = []
    for (examples, start), group in groupby(results, lambda r: (r.key.examples, r.key.start)):
        seeds = list(group)
        also = {
            source: tuple(result.also[source].accuracy for result in seeds)
            for source in seeds[0].also
        }
        accuracies = tuple(result.scores.accuracy for result in seeds)
        points.append(Point(start=start, examples=examples, accuracies=accuracies, also=also))
    return points


def label_efficiency_table(points: Sequence[Point]) -> list[str]:
    """Mean and deviation in percent, a line per number of rows; empty for a single one."""
    sizes = sorted({point.examples for point in points})
    if len(sizes) < 2:
        return []
    starts = [start for start in SHOWN if any(point.start == start for point in points)]
    by_key = {(point.examples, point.start): point for point in points}
    lines = []
    for source in (None, *points[0].also):
        title = f"accuracy on {source}, %" if source else "accuracy, %"
        lines += ["", title, "      rows" + "".join(f"{SHOWN[start]:>16}" for start in starts)]
        for size in sizes:
            found = (by_key[size, start].accuracies_on(source) for start in starts)
            shown = (mean_in_words([100 * accuracy for accuracy in of], ".1f") for of in found)
            lines.append(f"{size:>10,}" + "".join(f"{percent:>16}" for percent in shown))
    return lines


def no_gain(
    points: Sequence[Point], *, test_rows: int, losses: Sequence[float], pairs: str
) -> list[str]:
    """A note where pretraining, with these losses and pairs, did not pay beyond the noise."""
    most = max(point.examples for point in points)
    compared = {point.start: point for point in points if point.examples == most}
    ours, scratch = compared["pretrained"], compared.get("from_scratch")
    if scratch is None:
        return []
    noise = 2 * math.hypot(_error(ours, test_rows), _error(scratch, test_rows))
    if ours.mean() - scratch.mean() > noise:
        return []
    advice = ["pretrain on more text like that of the task"]
    if len(losses) > 1 and losses[-1] < FALLING * losses[-2]:
        advice.append(f"for more minutes (its held-out loss still fell, to {losses[-1]:.2f})")
    if pairs not in ("none", "packed"):
        advice.append("on shards of --pairs none")
    return [
        f"pretraining did not pay: accuracy {ours.mean():.4f}, from scratch {scratch.mean():.4f}, "
        f"and differences up to {noise:.4f} are noise; {', '.join(advice)}."
    ]


def draw_label_efficiency(points: Sequence[Point], *, kind: str) -> bytes:
    """The figure as "svg" or "png"; equal points give equal bytes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "label efficiency", "font.family": "DejaVu Sans", "font.size": 10}
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        plot_label_efficiency(axes, points, COLOURS)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(file, format=kind, dpi=160, metadata=metadata)
    return file.getvalue()


def plot_label_efficiency(
    axes: "Axes", points: Sequence[Point], colours: Mapping[Start, str], source: str | None = None
) -> None:
    """A line for each model, with its deviation; `source` is another test set."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for start in SHOWN:
        line = [point for point in points if point.start == start]
        if not line:
            continue
        axes.errorbar(
            [point.examples for point in line],
            [100 * point.mean(source) for point in line],
            [100 * point.deviation(source) for point in line],
            color=colours[start],
            marker=MARKERS[start],
            label=SHOWN[start],
            capsize=3,
        )
        for point in line if start == "pretrained" else ():
            axes.annotate(
                f"{100 * point.mean(source):.1f}",
                (point.examples, 100 * (point.mean(source) + point.deviation(source))),
                (0, 5),
                textcoords="offset points",
                ha="center",
            )
    axes.set_xscale("log")
    axes.set_xticks(sorted({point.examples for point in points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.1)
    axes.set_xlabel("labelled training rows")
    axes.set_ylabel("accuracy, %" if source else "test accuracy, %")  # a path has no room there
    axes.legend(loc="lower right", frameon=False)


def _error(point: Point, test_rows: int) -> float:
    """Standard error of the mean over seeds, which share a sample of test rows."""
    of_seeds = point.deviation() ** 2 / len(point.accuracies)
    return math.sqrt(of_seeds + point.mean() * (1 - point.mean()) / test_rows)
