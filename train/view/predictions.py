"""The Predictions page: the test rows of a classifier, by class and confidence, with whole texts.

only=wrong&label=1&least=90  ->  mistakes on rows of class 1, at least 90 % confident, 20 a page
"""

from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.view.site import Tab, Values, number_of
from clozeline.train.labelled.predictions import Predictions
from clozeline.train.labelled.rows import Rows

PAGE = 20  # rows
WRONG, RIGHT, ALL = "wrong", "right", "all"
KINDS = {WRONG: "mistakes", RIGHT: "right ones", ALL: "all"}


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which rows a page shows, the most confident first."""

    only: str = WRONG
    label: int | str = ""  # number of a class; "": any
    predicted: int | str = ""
    least: int = 0  # confidence in percent
    most: int = 100
    start: int = 0

    @classmethod
    def of(cls, values: Values) -> "Filter":
        """From the address. Raises InputError for what is not a number, and an unknown filter."""
        only = str(values.get("only", WRONG))
        if only not in KINDS:
            raise InputError(f"there is no filter {only!r}.")
        names = ("label", "predicted", "least", "most", "start")
        numbers: dict[str, Any] = {n: number_of(values, n) for n in names if values.get(n)}
        return cls(only=only, **numbers)

    def address(self, start: int, path: str = "/predictions") -> str:
        """The link to the same rows, from another one on."""
        return f"{path}?{urlencode(asdict(replace(self, start=start)))}"

    def rows(self, predictions: Predictions) -> Rows:
        predicted, confidence = predictions.predicted, predictions.confidence
        is_right = predicted == predictions.labels
        matches = np.ones(len(is_right), np.bool_)
        if self.only != ALL:
            matches &= is_right == (self.only == RIGHT)
        for number, column in ((self.label, predictions.labels), (self.predicted, predicted)):
            if number != "":
                matches &= column == number
        matches &= (confidence >= self.least / 100) & (confidence <= self.most / 100)
        rows = np.flatnonzero(matches)
        return rows[np.argsort(-confidence[rows], kind="stable")]


class PredictionPages:
    """The test rows of one classifier."""

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions

    def tab(self) -> Tab:
        """The page; in a report, the most confident mistakes."""
        return Tab(
            name="Predictions",
            path="/predictions",
            template="clozeline.train.view/predictions.html.jinja",
            values=self.values,
        )

    def values(self, values: Values) -> dict[str, Any]:
        query = Filter.of(values)
        rows, start = query.rows(self._predictions), query.start
        shown = rows[start : start + PAGE].tolist()
        note = f"{len(rows):,} of {len(self._predictions.texts):,} test rows"
        if shown:
            note += f"; {start + 1:,} to {start + len(shown):,}, the most confident first"
        return {
            "query": query,
            "kinds": KINDS,
            "classes": {"": "any"} | dict(enumerate(self._predictions.names)),
            "note": f"{note}.",
            "rows": [self._row(row) for row in shown],
            "download": query.address(0, "/predictions.csv"),
            "before": start and query.address(max(start - PAGE, 0)),
            "after": start + PAGE < len(rows) and query.address(start + PAGE),
        }

    def csv(self, values: Values) -> str:
        """All rows of a filter."""
        return self._predictions.csv(Filter.of(values).rows(self._predictions).tolist())

    def _row(self, row: int) -> dict[str, str]:
        names = self._predictions.names
        label, predicted = self._predictions.labels[row], self._predictions.predicted[row]
        sure = f"{self._predictions.confidence[row]:.1%}"
        answer = f"✗ predicted {names[predicted]}" if label != predicted else "✓ predicted"
        title = f"Row {row + 1:,}: {names[label]} {answer} ({sure})"
        return {"title": title, "text": self._predictions.texts[row]}
