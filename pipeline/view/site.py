"""The pages of `clozeline view`: tabs of one site, served live or written as one file.

Site(title, tabs, actions)  ->  routes "GET /examples", "GET /curves.json", "POST /fill" ...
                            ->  one HTML file with all tabs but those that need the server: a report
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.packages import check_packages
from clozeline.pipeline.common.paths import AnyPath, is_local, whole_file
from clozeline.pipeline.common.store import is_file
from clozeline.pipeline.report.html import asset, fill_template

if TYPE_CHECKING:
    from clozeline.pipeline.common.http_server import HttpServer

PAGE_START = b"<!doctype html"
STYLE = "clozeline.pipeline.view/page.css"

Values = Mapping[str, Any]  # of a query, or of the JSON that was posted


@dataclass(frozen=True, kw_only=True)
class Tab:
    """One page: its name, its path ("/examples"), its template, and what that shows."""

    name: str
    path: str
    template: str
    #: From the query to the values of the template, "data" among them if the page has a script.
    values: Callable[[Values], dict[str, Any]]
    #: From the query to plain values, for a script that asks for PATH.json.
    data: Callable[[Values], Any] | None = None
    scripts: Sequence[str] = ()  # assets
    needs_server: bool = False  # not part of a report
    is_slow: bool = False  # not the page to begin with


@dataclass(frozen=True, kw_only=True)
class Site:
    """All pages, and the actions of their scripts: path -> JSON in, JSON out.

    Raises InputError if a library that every page needs is missing.
    """

    title: str
    tabs: Sequence[Tab]
    paths: str = ""  # of the folders; a report, which may be published, has their names alone
    actions: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    #: What can be downloaded: path -> from the query to CSV.
    downloads: Mapping[str, Callable[[Values], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_packages("a report", "jinja2")

    @property
    def scripts(self) -> list[str]:
        return list(dict.fromkeys(script for tab in self.tabs for script in tab.scripts))

    def routes(self) -> dict[str, tuple[str, Callable[[Values], Any]]]:
        """What a server answers, by method and path: the media type, and what makes the answer."""
        routes: dict[str, tuple[str, Callable[[Values], Any]]] = {
            "GET /style.css": ("text/css", lambda _: asset(STYLE)),
            "GET /script.js": ("text/javascript", lambda _: asset(*self.scripts)),
        }
        for tab in self.tabs:
            routes[f"GET {tab.path}"] = ("text/html", partial(self._page, tab))
            if tab.data:
                routes[f"GET {tab.path}.json"] = ("application/json", tab.data)
        for path, make in self.downloads.items():
            routes[f"GET {path}"] = ("text/csv", make)
        for path, action in self.actions.items():
            routes[f"POST {path}"] = ("application/json", action)
        return routes

    def server(self, *, port: int = 0) -> "HttpServer":
        """A server of the pages. Raises InputError if the port cannot be used."""
        check_packages("view", "starlette", "uvicorn")
        from clozeline.pipeline.view.server import local_server

        home = next((tab for tab in self.tabs if not tab.is_slow), self.tabs[0]).path
        return local_server(self.routes(), home=home, error_page=partial(self._html, []), port=port)

    def export(self, path: AnyPath) -> None:
        """Write all tabs as one page that needs no server: a report.

        Equal values give equal bytes. Raises InputError if `path` cannot be a file.
        """
        _check_file(path)
        site = replace(self, tabs=[tab for tab in self.tabs if not tab.needs_server])
        script = asset(*site.scripts)
        html = site._html(
            [(tab, tab.values({})) for tab in site.tabs],
            is_live=False,
            style=asset(STYLE),
            script=script,
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
        with whole_file(path) as file:
            file.write(html.encode())

    def _page(self, tab: Tab, query: Values) -> str:
        return self._html([(tab, tab.values(query))])

    def _html(
        self, pages: list[tuple[Tab, dict[str, Any]]], message: str = "", **values: Any
    ) -> str:
        values = {"site": self, "pages": pages, "message": message, "is_live": True} | values
        return fill_template("clozeline.pipeline.view/page.html.jinja", **values)


def _check_file(path: AnyPath) -> None:
    """Before the pages are made, which may take long."""
    if is_local(path):  # a store has no folders
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the name of a file.")
        if not path.parent.is_dir():
            raise InputError(f"{path.parent} is not a folder; give a file in an existing folder.")
    if is_file(path) and not _is_page(path):
        raise InputError(f"{path} exists and is not an HTML page; give another file.")


def _is_page(path: AnyPath) -> bool:
    """Whether a file may be replaced by a page: it is one, or is empty."""
    with path.open("rb") as file:
        start = file.read(len(PAGE_START))
    return start.lower() in (b"", PAGE_START)


def number_of(values: Values, name: str) -> int:
    """A number from the address, 0 by default; it may have separators.

    Raises InputError for other text, and for a number of more than 18 digits.
    """
    text = str(values.get(name, 0)).replace(",", "").strip()
    if not re.fullmatch("[0-9]{1,18}", text):
        raise InputError(
            f"{name} is {text[:20]!r}; it must be a number from 0, of 18 digits at most."
        )
    return int(text)
