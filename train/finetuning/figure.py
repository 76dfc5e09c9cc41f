"""The label-efficiency curve: accuracy over training rows, a line per model, mean and deviation."""

import io
from collections.abc import Sequence
from typing import Protocol

from clozeline.train.finetuning.cells import SHOWN, Start

COLOURS: dict[Start, str] = {
    "pretrained": "#1f5fbf",
    "from_scratch": "#d9822b",
    "bag_of_words": "#7a7a7a",
}
MARKERS: dict[Start, str] = {"pretrained": "o", "from_scratch": "s", "bag_of_words": "^"}


class Measured(Protocol):
    """A point of the curve."""

    @property
    def start(self) -> Start: ...
    @property
    def examples(self) -> int: ...
    @property
    def mean(self) -> float: ...
    @property
    def deviation(self) -> float: ...


def draw_label_efficiency(points: Sequence[Measured], *, kind: str) -> bytes:
    """The figure as "svg" or "png"; equal points give equal bytes."""
    import matplotlib.style
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    style = {"svg.hashsalt": "label efficiency", "font.family": "DejaVu Sans", "font.size": 10}
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for start in SHOWN:
            line = [point for point in points if point.start == start]
            axes.errorbar(
                [point.examples for point in line],
                [100 * point.mean for point in line],
                [100 * point.deviation for point in line],
                color=COLOURS[start],
                marker=MARKERS[start],
                label=SHOWN[start],
                capsize=3,
            )
            for point in line if start == "pretrained" else ():
                axes.annotate(
                    f"{100 * point.mean:.1f}",
                    (point.examples, 100 * (point.mean + point.deviation)),
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
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(file, format=kind, dpi=160, metadata=metadata)
    return file.getvalue()
