"""A page: chapters of sections with tables, charts and examples, in one file that loads nothing.

    [Chapter(name="Data set", figures=[("shards", "8")], sections=[...])]  ->  html_page  ->  HTML

Text is escaped wherever it comes from; only charts, which `charts.py` draws, are inserted as they
are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

from clozeline.pipeline.common.errors import InputError, escaped
from clozeline.pipeline.common.paths import AnyPath, is_file, is_local
from clozeline.pipeline.report.inspect import ShownExample

PAGE_START = b"<!doctype html"
Summary = TypeVar("Summary")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under their heads; the first column is left-aligned."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
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
    warnings: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    examples: Sequence[ShownExample] = ()


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """What a page says about a data set, about runs, or about a classifier."""

    name: str
    figures: Sequence[tuple[str, str]]  # key figures, by name
    sections: Sequence[Section]

    @property
    def anchor(self) -> str:
        """The id of its element: "data-set"."""
        return self.name.lower().replace(" ", "-")


def make_sections(
    functions: Iterable[Callable[[Summary], Section | None]], summary: Summary
) -> list[Section]:
    """The sections of a chapter in order; a function returns None if it has nothing to show."""
    sections = (function(summary) for function in functions)
    return [section for section in sections if section is not None]


def html_page(title: str, chapters: Sequence[Chapter]) -> str:
    """The whole page. Equal chapters give equal text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not markup
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template, style = (
        files("clozeline.pipeline.report").joinpath(name).read_text("utf-8")
        for name in ("page.html.jinja", "page.css")
    )
    page = environment.from_string(template)
    return page.render(title=title, chapters=chapters, style=style) + "\n"


def check_page_file(path: AnyPath) -> None:
    """Raises InputError where no file can be, or one that is not a page: before it is made."""
    if is_local(path) and (path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"{path} cannot be a page; give a file in an existing folder.")
    if is_file(path):
        with path.open("rb") as file:
            start = file.read(len(PAGE_START))
        if start.lower() not in (b"", PAGE_START):
            raise InputError(f"{path} exists and is not an HTML page; give another file.")


def printable(text: str) -> str:
    """The text with unprintable characters, except line ends, escaped."""
    return "\n".join(map(escaped, text.split("\n")))
