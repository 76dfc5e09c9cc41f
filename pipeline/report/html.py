"""A page of facts and pictures: one HTML file that needs nothing beside it.

A page is a title, some facts, and sections of a heading, a sentence, pictures and tables. Text is
escaped wherever it comes from; only pictures, which `pictures` made, are taken as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts under their heads. The first column is to the left, numbers to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    of_numbers: bool = True  # from the second column on


@dataclass(frozen=True, kw_only=True)
class Chart:
    """An SVG and what it shows, in words."""

    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """One question about the data, and its answer."""

    heading: str
    sentence: str
    pictures: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    text: str = ""  # shown as it is, line by line


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that is on one page."""

    title: str
    facts: Sequence[tuple[str, str]]  # what, how much
    sections: Sequence[Section]


def page_html(page: Page) -> str:
    """The page as HTML; equal pages are equal texts."""
    return fill_template("page.html.jinja", escape=True, page=page)


def printable(text: str) -> str:
    """The text, with what has no shape (control characters and the like) as an escape.

    "tab\t, \u202eleft"  ->  "tab\\t, \\u202eleft"
    """
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def fill_template(name: str, *, escape: bool, **values: Any) -> str:
    """A template of this package with the values put in, escaped for HTML if asked for."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=escape,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not markup
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = files("pipeline.report").joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(template).render(values) + "\n"
