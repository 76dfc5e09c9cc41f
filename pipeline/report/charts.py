"""Charts as SVG for a page: bars, columns, lines and points, drawn by matplotlib.

Colours are CSS variables (`var(--ink)`), which the page sets for light and for dark mode; labels
are text in the page's own font. Equal values give equal bytes on every machine: no timestamp, no
random ids, and no settings of the user's matplotlib.
"""

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

from clozeline.pipeline.report.html import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[str, tuple[ArrayLike, ArrayLike]]  # name -> x, y

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
LONGEST_LABEL = 24  # characters
DRAWING = threading.Lock()  # matplotlib's settings are those of the process
WIDTH = 5.2  # inches: 374 units of the SVG, so that a font of 9 units can be read on a phone

# matplotlib accepts no CSS variables: these colours are replaced once the chart is drawn.
INK, FAINT, *SERIES = (f"#0{number}0{number}0{number}" for number in range(1, 7))
NAMES = {INK: "var(--ink)", FAINT: "var(--faint)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a token may be "$"
    "font.family": "DejaVu Sans",  # comes with matplotlib, so text has the same size everywhere
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


def draw_bars(
    name: str, values: Mapping[str, float], *, text: Callable[[float], str], log: bool = False
) -> str:
    """A horizontal bar for each value, from top to bottom, with the value's text at the end.

    `log` is for values that span several orders of magnitude, all at least 1.
    """
    with drawing(name, height=0.5 + 0.22 * len(values)) as (axes, svg):
        axes.barh(range(len(values)), list(values.values()), height=0.7, color=SERIES[0])
        axes.set_yticks(range(len(values)), [_short(printable(label)) for label in values])
        axes.invert_yaxis()
        axes.tick_params("y", length=0)
        axes.grid(visible=False)
        axes.set_ylim(len(values) - 0.4, -0.6)
        if log:
            axes.set_xscale("log")
            axes.set_xlim(left=0.5)
        axes.set_xticks([], minor=False)
        axes.set_xticks([], minor=True)
        axes.spines[["bottom", "left"]].set_visible(False)
        for y, value in enumerate(values.values()):
            axes.annotate(
                text(value), (value, y), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
    return svg()


def draw_columns(
    name: str,
    edges: ArrayLike,
    heights: ArrayLike,
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
) -> str:
    """A histogram of N columns between N + 1 edges; the heights are fractions."""
    edges = np.asarray(edges)
    with drawing(name, height=2.3) as (axes, svg):
        axes.bar(
            edges[:-1], heights, width=np.diff(edges), align="edge", color=SERIES[0], linewidth=0
        )
        axes.set_xlim(edges[0], edges[-1])
        if log:
            axes.set_yscale("log")
            axes.set_ylim(*_whole_powers(heights))
        _label(axes, x_label, y_label, percent=True)
    return svg()


def draw_lines(
    name: str,
    series: Series,
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    percent: bool = False,
    steps: bool = False,
    from_zero: bool = True,
) -> str:
    """A line for each series, at most four; `steps` for values that hold until the next x.

    `log`: both axes are logarithmic. `from_zero`: the y axis starts at 0 instead of the lowest
    value.
    """
    with drawing(name, height=2.3) as (axes, svg):
        for colour, (label, (x, y)) in zip(SERIES, series.items(), strict=False):
            style = "steps-post" if steps else "default"
            axes.plot(x, y, color=colour, lw=1.4, label=_in_legend(label), drawstyle=style)
        if log:
            axes.set(xscale="log", yscale="log")
            axes.set_ylim(*_whole_powers(np.concatenate([y for _, y in series.values()])))
        if from_zero and not log:
            axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)
        axes.margins(x=0.01)
        _label(axes, x_label, y_label, percent=percent)
    return svg()


def _in_legend(label: str) -> str:
    """The start of a label, which matplotlib would leave out if it began with "_"."""
    label = _short(printable(label))
    return f" {label}" if label.startswith("_") else label


def draw_points(
    name: str, series: Series, *, band: tuple[float, float], x_label: str, y_label: str
) -> str:
    """A point for each value (a fraction) at whole x from 0 on, and the band for most of them."""
    from matplotlib.ticker import MaxNLocator

    with drawing(name, height=2.3) as (axes, svg):
        axes.axhspan(*band, color=FAINT, alpha=0.35, linewidth=0)
        for colour, (label, (x, y)) in zip(SERIES, series.items(), strict=False):
            axes.plot(x, y, ".", color=colour, markersize=5, label=_in_legend(label))
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, band[0]) - 0.02, max(high, band[1]) + 0.02)
        last = max(np.max(x) for x, _ in series.values())
        axes.set_xlim(-0.5, last + 0.5)  # from 0 on
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _label(axes, x_label, y_label, percent=True)
    return svg()


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


@contextmanager
def drawing(name: str, *, height: float) -> Iterator[tuple["Axes", Callable[[], str]]]:
    """Axes to draw on, and a function that returns the SVG once the block has ended."""
    import warnings

    import matplotlib.style
    from matplotlib.figure import Figure

    file = io.BytesIO()
    style = matplotlib.style.context(["default", STYLE | {"svg.hashsalt": name}])
    with DRAWING, style, warnings.catch_warnings():
        # The reader's browser has the fonts for the letters of every token.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure.add_subplot(), lambda: _clean_svg(file.getvalue())
        figure.savefig(file, format="svg", transparent=True)


def _whole_powers(values: ArrayLike) -> tuple[float, float]:
    """The powers of ten around the values above 0: ticks that can be labelled."""
    above = np.asarray(values, dtype=np.float64)
    above = np.log10(above[above > 0])
    # The smallest value is still visible.
    return 10.0 ** np.floor(above.min() - 0.1), 10.0 ** np.ceil(above.max())


def _label(axes: "Axes", x_label: str, y_label: str, *, percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if len(axes.get_legend_handles_labels()[1]) > 1:  # one series needs no legend
        # Above the axes, where no line can be.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0, fontsize=8)
    axes.set(xlabel=x_label, ylabel=y_label)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":  # matplotlib's own labels are formulas
            axis.set_major_formatter(
                FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            )
            axis.set_minor_formatter(NullFormatter())
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.6g}%"))


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
