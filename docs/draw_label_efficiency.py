"""Draws docs/manual/label-efficiency.svg: the results of several classifiers in one figure.

python docs/draw_label_efficiency.py work/few work/all --out docs/manual/label-efficiency.svg
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from clozeline.train.artifacts.classifier_folder import read_report
from clozeline.train.finetuning.report import FinetuneReport, Point, points_of
from clozeline.train.finetuning.results import SHOWN, Start

#: Colour and marker of each line.
STYLES: dict[Start, tuple[str, str]] = {
    "pretrained": ("#1f5fbf", "o"),
    "from_scratch": ("#d9822b", "s"),
    "bag_of_words": ("#7a7a7a", "^"),
}
RC = {"svg.hashsalt": "label efficiency", "font.family": "DejaVu Sans", "font.size": 10}


def main() -> None:
    """Parse the arguments, write the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classifiers", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    reports = [FinetuneReport(read_report(folder)) for folder in given.classifiers]
    results = {result.key: result for report in reports for result in report.results}
    points = points_of(list(results.values()))
    draw(points, given.out)
    for point in points:
        print(f"{point['examples']:>7,} {point['start']:>13} {100 * point['mean']:5.1f}")


def draw(points: Sequence[Point], out: Path) -> None:
    """A line for each model, with its deviation; equal points give equal bytes."""
    with matplotlib.style.context(["default", RC]):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for start, (colour, marker) in STYLES.items():
            line = [point for point in points if point["start"] == start]
            x, y = ([point[name] for point in line] for name in ("examples", "mean"))
            bars = [100 * point["deviation"] for point in line]
            style = {"color": colour, "marker": marker, "label": SHOWN[start], "capsize": 3}
            axes.errorbar(x, [100 * mean for mean in y], bars, **style)
            for point in line if start == "pretrained" else ():
                top = (point["examples"], 100 * (point["mean"] + point["deviation"]))
                shown = f"{100 * point['mean']:.1f}"
                axes.annotate(shown, top, (0, 5), textcoords="offset points", ha="center")
        axes.set_xscale("log")
        axes.set_xticks(sorted({point["examples"] for point in points}))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(y=0.1)
        axes.set_xlabel("labelled training rows")
        axes.set_ylabel("test accuracy, %")
        axes.legend(loc="lower right", frameon=False)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(out, format="svg", dpi=160, metadata={"Date": None})


if __name__ == "__main__":
    main()
