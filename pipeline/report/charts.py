"""Charts as SVG for a page: lines over a column of numbers, drawn by matplotlib.

Colours are CSS variables (`var(--ink)`), which the page sets for light and for dark mode; labels
are text in the page's own font. Equal values give equal bytes on every machine: no timestamp, no
random ids, and no settings of the user's matplotlib.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from numpy.typing import ArrayLike

from clozeline.pipeline.report.page import Chart, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
LONGEST_LABEL = 24  # characters
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
    "axes.formatter.use_mathtext": False,
    "axes.xmargin": 0.02,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A line of a chart; one without a label is not in the legend."""

    x: ArrayLike  # [N]
    y: ArrayLike  # [N]
    label: str = ""
    number: int = 0  # of its colour, 0 to 3
    style: Literal["-", "--", ":"] = "-"
    marker: Literal["", "o", "s", "^"] = ""
    deviation: ArrayLike | None = None  # [N]
    is_faint: bool = False  # behind the others
    is_stepped: bool = False  # a value holds until the next x


def draw_lines(
    name: str,
    lines: Sequence[Line],
    *,
    caption: str,
    x_label: str,
    y_label: str = "",
    log_x: bool = False,
    percent: bool = False,
    from_zero: bool = False,
) -> Chart:
    """At least one line, each of at least one point.

    `percent`: the y values are fractions. `from_zero`: the y axis starts at 0.
    """
    with _drawing(name) as (axes, svg):
        for line in lines:
            axes.errorbar(
                line.x,
                line.y,
                line.deviation,
                color=SERIES[line.number],
                linestyle=line.style,
                linewidth=1 if line.is_faint else 1.5,
                alpha=0.3 if line.is_faint else 1,
                marker=line.marker,
                markersize=4,
                capsize=3,
                label=_in_legend(line.label) or None,
                drawstyle="steps-post" if line.is_stepped else "default",
            )
        if log_x:
            axes.set_xscale("log")
        if from_zero:
            axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)
        _label(axes, x_label, y_label, percent=percent)
    return Chart(svg=svg(), caption=caption)


def _in_legend(label: str) -> str:
    """The start of a label, which matplotlib would leave out if it began with "_"."""
    label = printable(label)
    label = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
    return f" {label}" if label.startswith("_") else label


@contextmanager
def _drawing(name: str) -> Iterator[tuple["Axes", Callable[[], str]]]:
    """Axes to draw on, and a function that returns the SVG once the block has ended."""
    import warnings

    import matplotlib.style
    from matplotlib.figure import Figure

    file = io.BytesIO()
    style = matplotlib.style.context(["default", STYLE | {"svg.hashsalt": name}])
    with style, warnings.catch_warnings():
        # The reader's browser has the fonts for the letters of every name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        yield figure.add_subplot(), lambda: _clean_svg(file.getvalue())
        figure.savefig(file, format="svg", transparent=True)


def _label(axes: "Axes", x_label: str, y_label: str, *, percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if len(axes.get_legend_handles_labels()[1]) > 1:  # one series needs no legend
        # Above the axes, where no line can be.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0, fontsize=8)
    axes.set(xlabel=x_label, ylabel=y_label)
    if axes.get_xscale() == "log":  # matplotlib's own labels are formulas, and few
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    scale, unit = (100, "%") if percent else (1, "")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{scale * y:,.6g}{unit}"))


def _clean_svg(svg: bytes) -> str:
    """The SVG without size, metadata and unused ids, and with the page's colours."""
    for prefix, uri in (("", SVG), ("xlink", XLINK)):
        ElementTree.register_namespace(prefix, uri)
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for unwanted in ("width", "height", "version"):
        root.attrib.pop(unwanted, None)
    for element in root.iter():
        if element.tag in (f"{{{SVG}}}g", f"{{{SVG}}}svg"):
            element.attrib.pop("id", None)
        for colour, name in NAMES.items():
            for attribute, value in element.attrib.items():
                element.set(attribute, value.replace(colour, name))
    return ElementTree.tostring(root, encoding="unicode")
