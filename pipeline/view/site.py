"""The pages of `clozeline view`: tabs of one site, served live or written as one file.

Site(title, tabs, actions)  ->  routes "GET /examples", "GET /examples.json", "POST /fill" ...
                            ->  one HTML file with all tabs, without what needs the server
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.report.html import asset, check_report, fill_template
from clozeline.pipeline.view.server import (
    CSS,
    JAVASCRIPT,
    LocalServer,
    Reply,
    Route,
    Values,
    json_reply,
)

TEMPLATE = "clozeline.pipeline.view/view.html.jinja"
LIBRARIES = ("jinja2",)  # needed for every page


@dataclass(frozen=True, kw_only=True)
class Tab:
    """One page: its name, its path ("/examples"), its template, and what that shows."""

    name: str
    path: str
    template: str
    #: From the query to the values of the template, "data" among them if the page has a script.
    values: Callable[[Values], dict[str, Any]]
    #: From the query to plain values, for PATH.json.
    data: Callable[[Values], Any]
    scripts: Sequence[str] = ()  # assets
    needs_server: bool = False  # not part of an exported page


@dataclass(frozen=True, kw_only=True)
class Site:
    """All pages, and the actions of their scripts: path -> JSON in, JSON out."""

    title: str
    tabs: Sequence[Tab]
    actions: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)

    @property
    def scripts(self) -> list[str]:
        """The scripts of all tabs, each once."""
        return list(dict.fromkeys(script for tab in self.tabs for script in tab.scripts))

    def routes(self) -> dict[str, Route]:
        """What a server answers, by method and path."""
        first = self.tabs[0].path
        routes: dict[str, Route] = {
            "GET /": lambda _: Reply("", status=302, location=first),
            "GET /style.css": lambda _: Reply(self._style(), CSS),
            "GET /script.js": lambda _: Reply(self._script(), JAVASCRIPT),
        }
        for tab in self.tabs:
            routes[f"GET {tab.path}"] = partial(self._page, tab)
            routes[f"GET {tab.path}.json"] = partial(_as_json, tab.data)
        for path, action in self.actions.items():
            routes[f"POST {path}"] = partial(_as_json, action)
        return routes

    def server(self, *, port: int = 0) -> LocalServer:
        """A server of the pages. Raises InputError if the port cannot be used."""
        check_report(None, LIBRARIES)
        return LocalServer(self.routes(), self._error_page, port=port)

    def export(self, path: AnyPath) -> None:
        """Write all tabs as one page that needs no server.

        Raises InputError if a library is missing or `path` cannot be a file.
        """
        check_report(path, LIBRARIES)
        site = replace(self, tabs=[tab for tab in self.tabs if not tab.needs_server])
        script = site._script()
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        html = fill_template(
            TEMPLATE,
            escape=True,
            site=site,
            pages=[(tab, tab.values({})) for tab in site.tabs],
            is_live=False,
            message="",
            style=self._style(),
            script=script,
            script_digest=digest,
        )
        with whole_file(path) as file:
            file.write(html.encode())

    def _page(self, tab: Tab, query: Values) -> Reply:
        return Reply(self._html([(tab, tab.values(query))]))

    def _error_page(self, status: int, message: str) -> Reply:
        return Reply(self._html([], message), status=status)

    def _html(self, pages: list[tuple[Tab, dict[str, Any]]], message: str = "") -> str:
        return fill_template(
            TEMPLATE, escape=True, site=self, pages=pages, is_live=True, message=message
        )

    def _style(self) -> str:
        return asset("page.css", "clozeline.pipeline.view/view.css")

    def _script(self) -> str:
        return asset(*self.scripts)


def _as_json(make: Callable[[Values], Any], values: Values) -> Reply:
    return json_reply(make(values))
