"""The Examples page: rows of a data set, by shard and row, search and filter.

shard=1&row=120&text=river&only=random  ->  the next ten such rows, links back and forward
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.dataset.manifest import TOKENIZER, read_manifest
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.shown_example import ShownExample, shown_example
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.view.row_search import ALL, RANDOM, SHORT_ROWS, UNKNOWN, RowSearch
from clozeline.pipeline.view.site import Tab, Values, number_of

PAGE = 10  # rows
MOST_ROWS = 1_000_000  # searched by one request
OPEN_SHARDS = 2

RowId = tuple[int, int]  # shard, row


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a page shows: the rows from here on, or those before."""

    shard: int = 0
    row: int = 0
    text: str = ""
    only: str = ALL
    back: int = 0  # 1: the rows before

    @classmethod
    def of(cls, values: Values) -> "Query":
        """From the address. Raises InputError for what is not a number."""
        numbers = {name: number_of(values, name) for name in ("shard", "row", "back")}
        return cls(**numbers, text=str(values.get("text", "")), only=str(values.get("only", ALL)))

    def link(self, row_id: RowId | None, *, back: bool = False) -> str | None:
        """The address of the same search from another row on; None without one."""
        if row_id is None:
            return None
        shard, row = row_id
        values = {"shard": shard, "row": row, "text": self.text, "only": self.only}
        return "/examples?" + urlencode(values | ({"back": 1} if back else {}))


@dataclass(frozen=True, kw_only=True)
class Found:
    """The rows of a page, and where the pages before and after it begin."""

    row_ids: Sequence[RowId]
    before: RowId | None = None  # the page before ends here
    after: RowId | None = None
    note: str = ""


class ExamplePages:
    """The rows of one data set. Raises InputError if the folder is not a finished data set."""

    def __init__(self, folder: AnyPath) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.tokenizer = load_tokenizer(folder / TOKENIZER)
        self.shards = self.manifest.shards
        self._read = lru_cache(OPEN_SHARDS)(self._read_shard)
        self._matches = lru_cache(32)(self._find)

    def _read_shard(self, number: int) -> Examples:
        shard = self.shards[number]
        return read_shard(self.folder / shard.name, expected=shard.checksum)

    def tab(self) -> Tab:
        template = "clozeline.pipeline.view/examples.html.jinja"
        return Tab(
            name="Examples", path="/examples", template=template, values=self.values, data=self.data
        )

    def values(self, values: Values) -> dict[str, Any]:
        """What the template shows."""
        query, found, examples = self._page(values)
        filters = {
            ALL: "all rows",
            RANDOM: f"B is {self.manifest.config.negative_pairs}",
            UNKNOWN: f"with {self.tokenizer.special_tokens[1]}",
            SHORT_ROWS: "shorter than half",
        }
        return {
            "query": query,
            "found": found,
            "examples": examples,
            "filters": filters,
            "shards": dict(enumerate(f"{x.name} ({counted(x.rows, 'row')})" for x in self.shards)),
            "before": query.link(found.before, back=True),
            "after": query.link(found.after),
        }

    def data(self, values: Values) -> Any:
        """The same rows, for a program."""
        query, found, examples = self._page(values)
        rows = [
            {
                "shard": self.shards[shard].name,
                "row": row,
                "notes": list(example.notes),
                "documents": list(example.documents),
                "tokens": [
                    {"token": token.text, "mask": token.mask, "original": token.original}
                    for _, tokens in example.spans
                    for token in tokens
                ],
            }
            for (shard, row), example in zip(found.row_ids, examples, strict=True)
        ]
        before, after = query.link(found.before, back=True), query.link(found.after)
        return {"rows": rows, "note": found.note, "before": before, "after": after}

    def _page(self, values: Values) -> tuple[Query, Found, list[ShownExample]]:
        query = Query.of(values)
        if not any(shard.rows for shard in self.shards):
            return query, Found(row_ids=(), note="The data set has no rows."), []
        if query.shard >= len(self.shards):
            raise InputError(
                f"there is no shard {query.shard}; the last is {len(self.shards) - 1}."
            )
        if query.only not in (ALL, RANDOM, UNKNOWN, SHORT_ROWS):
            raise InputError(f"there is no filter {query.only!r}.")
        search = RowSearch.of(query.text, query.only, self.tokenizer)
        found = self._backward(query, search) if query.back else self._forward(query, search)
        return query, found, [self._shown(row_id) for row_id in found.row_ids]

    def _find(self, shard: int, search: RowSearch) -> Any:
        if search.is_everything:
            return np.arange(self.shards[shard].rows)
        longest = self.manifest.config.max_seq_length
        return search.rows(self._read(shard), self.tokenizer, max_seq_length=longest)

    def _forward(self, query: Query, search: RowSearch) -> Found:
        row_ids: list[RowId] = []
        start, searched = query.row, 0
        for shard in range(query.shard, len(self.shards)):
            matches = self._matches(shard, search)
            rows = matches[np.searchsorted(matches, start) :][: PAGE + 1 - len(row_ids)]
            row_ids += [(shard, row) for row in rows.tolist()]
            start, searched = 0, searched + self.shards[shard].rows
            if len(row_ids) > PAGE:
                break
            if searched >= MOST_ROWS and shard + 1 < len(self.shards):
                note = f"Searched {searched:,} rows; the next page continues."
                return self._bounded(query, row_ids, after=(shard + 1, 0), note=note)
        after = row_ids[PAGE] if len(row_ids) > PAGE else None
        note = "" if row_ids else "No row from here on matches."
        return self._bounded(query, row_ids[:PAGE], after=after, note=note)

    def _bounded(
        self, query: Query, row_ids: list[RowId], *, after: RowId | None, note: str
    ) -> Found:
        first = row_ids[0] if row_ids else (query.shard, query.row)
        is_start = first[1] == 0 and not any(shard.rows for shard in self.shards[: first[0]])
        before = None if is_start else first
        return Found(row_ids=row_ids, before=before, after=after, note=note)

    def _backward(self, query: Query, search: RowSearch) -> Found:
        """The last rows that match before a row, as a page that leads up to it."""
        row_ids: list[RowId] = []
        after, end, searched = (query.shard, query.row), query.row, 0
        for shard in range(query.shard, -1, -1):
            matches = self._matches(shard, search)
            matches = matches[: np.searchsorted(matches, end)] if shard == query.shard else matches
            rows = matches[len(matches) - min(len(matches), PAGE - len(row_ids)) :]
            row_ids = [(shard, row) for row in rows.tolist()] + row_ids
            count = self.shards[shard].rows
            searched += min(end, count) if shard == query.shard else count
            if len(row_ids) == PAGE:
                return self._bounded(query, row_ids, after=after, note="")
            if searched >= MOST_ROWS and shard > 0:
                note = f"Searched {searched:,} rows; the page before continues."
                return Found(row_ids=row_ids, before=(shard, 0), after=after, note=note)
        note = "" if row_ids else "No row before this one matches."
        return Found(row_ids=row_ids, after=after, note=note)

    def _shown(self, row_id: RowId) -> ShownExample:
        shard, row = row_id
        return shown_example(
            self._read(shard),
            row,
            self.tokenizer,
            title=f"{self.shards[shard].name}, row {row:,}",
            negative_pairs=self.manifest.config.negative_pairs,
        )
