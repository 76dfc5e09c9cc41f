"""Charts as SVG for a page: lines over a column of numbers, drawn by matplotlib.

Colours are CSS variables (`var(--ink)`), which the page sets for light and for dark mode; labels
are text in the page's own font. Equal values give equal bytes on every machine: no timestamp, no
random ids, and no settings of the user's matplotlib.
"""

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

from clozeline.pipeline.report.page import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.2, 2.3  # inches: 302 units of the SVG, so a font of 9 can be read on a phone

# matplotlib accepts no CSS variables: these colours are replaced once the chart is drawn.
INK, FAINT, *SERIES = (f"#0{number}0{number}0{number}" for number in range(1, 7))
NAMES = {INK: "var(--ink)", FAINT: "var(--faint)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may be "$"
    "font.family": "DejaVu Sans",  # comes with matplotlib, so text has the same size everywhere
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
#: What a chart in a page does not need: metadata, and ids that other charts have, too.
UNNEEDED = re.compile(r'<metadata>.*?</metadata>|(?<=<g) id="[^"]*"', re.DOTALL)


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A line of a chart; one without a label is not in the legend."""

    x: ArrayLike  # [N]
    y: ArrayLike  # [N]
    label: str = ""
    number: int = 0  # of its colour, 0 to 3
    style: Literal["-", "--", ":"] = "-"
    marker: str = ""  # as matplotlib names them
    deviation: ArrayLike | None = None  # [N]


def draw_lines(
    name: str,
    lines: Sequence[Line],
    *,
    caption: str,
    x_label: str,
    log_x: bool = False,
    percent: bool = False,
) -> tuple[str, str]:
    """SVG and caption. At least one line, each of at least one point.

    `percent`: the y values are fractions.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    file = io.StringIO()
    style = matplotlib.style.context(["default", STYLE | {"svg.hashsalt": name}])
    with style, warnings.catch_warnings():
        # The reader's browser has the fonts for the letters of every name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x_label)
        for line in lines:
            axes.errorbar(
                line.x,
                line.y,
                line.deviation,
                color=SERIES[line.number],
                linestyle=line.style,
                marker=line.marker,
                markersize=4,
                capsize=3,
                # One that begins with "_" would be left out.
                label=re.sub("^_", " _", printable(line.label)) or None,
            )
        _write_ticks(axes, log_x=log_x, percent=percent)
        if len(axes.get_legend_handles_labels()[1]) > 1:  # one series needs no legend
            # Above the axes, where no line can be.
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0, fontsize=8)
        figure.savefig(file, format="svg", transparent=True)
    svg = UNNEEDED.sub("", file.getvalue())
    for colour, variable in NAMES.items():
        svg = svg.replace(colour, variable)
    return svg[svg.index("<svg") :], caption


def _write_ticks(axes: "Axes", *, log_x: bool, percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    first, last = axes.dataLim.intervalx
    is_whole = not 0 < last - first < 1  # steps, epochs, tokens, rows; not confidences
    if log_x:  # matplotlib's own labels are few
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if last < 50 * first else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif is_whole:
        bins = 5 if last >= 10_000 else 7  # long labels need more room
        locator = MaxNLocator(bins, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
        axes.xaxis.set_major_locator(locator)
    if is_whole:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    scale, unit = (100, "%") if percent else (1, "")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{scale * y:,.9g}{unit}"))
