"""The parts of pages: sections of tables and charts, and templates filled as HTML.

    summary of a data set or a run  ->  sections, one function each  ->  parts.html.jinja  ->  HTML

Text is escaped wherever it comes from; only charts, which `charts.py` draws, are inserted as they
are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from clozeline.pipeline.common.errors import escaped

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

Summary = TypeVar("Summary")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under their heads; the first column is left-aligned."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_numeric: bool = True  # the other columns are right-aligned


@dataclass(frozen=True, kw_only=True)
class Chart:
    """An SVG and what it shows, in words."""

    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """One question about the data or the run, and its answer."""

    heading: str
    sentence: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


def make_sections(
    functions: Iterable[Callable[[Summary], Section | None]], summary: Summary
) -> list[Section]:
    """The sections of a page in order; a function returns None if it has nothing to show."""
    sections = (function(summary) for function in functions)
    return [section for section in sections if section is not None]


def printable(text: str) -> str:
    """The text with unprintable characters, except line ends, escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def fill_template(name: str, **values: Any) -> str:
    """A template filled with the values, which are escaped in one of HTML.

    "parts.html.jinja" is in this package, "clozeline.train.view/curves.html.jinja" in another one.
    """
    return _environment().get_template(name).render(values) + "\n"


def asset(*names: str) -> "Markup":
    """Stylesheets or scripts as they are, named like templates, which insert them unescaped."""
    from markupsafe import Markup

    return Markup("".join(map(_read_asset, names)))


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=FunctionLoader(_read_asset),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not markup
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _read_asset(name: str) -> str:
    package, _, file = name.rpartition("/")
    return files(package or "clozeline.pipeline.report").joinpath(file).read_text(encoding="utf-8")
