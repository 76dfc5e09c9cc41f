"""A page: chapters of sections with tables, charts and examples, in one file that loads nothing.

    [Chapter(name="Data set", figures=[("shards", "8")], sections=[...])]  ->  html_page  ->  HTML

Text is escaped wherever it comes from; only charts, which `charts.py` draws, are inserted as they
are. A page can be served to the browsers of this machine alone, made again whenever it is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from clozeline.pipeline.common.errors import InputError, escaped
from clozeline.pipeline.common.paths import AnyPath, is_file, is_local
from clozeline.pipeline.report.inspect import ShownExample

PAGE_START: Final = b"<!doctype html"
ADDRESS: Final = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under their heads; the first column is left-aligned."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    is_numeric: bool = True  # the other columns are right-aligned


@dataclass(frozen=True, kw_only=True)
class Section:
    """One question about the data or the run, and its answer. Empty tables are left out."""

    heading: str
    sentence: str
    warnings: Sequence[str] = ()
    charts: Sequence[tuple[str, str]] = ()  # SVG, and what it shows in words
    tables: Sequence[Table] = ()
    examples: Sequence[ShownExample] = ()


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """What a page says about a data set, about runs, or about a classifier."""

    name: str
    figures: Sequence[tuple[str, str]]  # key figures, by name
    sections: Sequence[Section]


def table_of(head: str, columns: Mapping[str, Mapping[str, str]]) -> Table:
    """A row for each name in the columns, which have heads; "-" where a column has no such name."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "-") for column in columns.values())) for name in names]
    return Table(heads=(head, *columns), rows=rows)


def html_page(title: str, chapters: Sequence[Chapter]) -> str:
    """The whole page. Equal chapters give equal text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("clozeline.pipeline.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not markup
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.jinja").render(title=title, chapters=chapters)


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


def page_server(make: Callable[[], str], *, port: int = 0) -> HTTPServer:
    """A server that answers every request with a page of `make`; port 0 is a free one.

    An InputError of `make` is shown in its place. Raises InputError for a port that is taken.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = [f"{name}:{server.server_port}" for name in (ADDRESS, "localhost")]
            if self.headers.get("Host") not in names:  # a name that was pointed here: DNS rebinding
                return self.send_error(403, "The Host header is not this server's address")
            try:
                page = make().encode()
            except InputError as error:
                return self.send_error(500, explain=str(error))
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page)
            return None

        def log_message(self, format: str, *values: Any) -> None:
            """Requests are not printed."""

    try:
        server = HTTPServer((ADDRESS, port), Page)
    except OSError as error:
        raise InputError(f"{ADDRESS}:{port}: {error.strerror}; give another --port.") from error
    return server
