"""What a page of `clozeline view` gets and answers.

{"row": "7"} of /examples?row=7  ->  Reply("<html>...")
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clozeline.pipeline.common.errors import InputError

HTML, JSON, CSS, JAVASCRIPT = (
    f"{kind}; charset=utf-8"
    for kind in ("text/html", "application/json", "text/css", "text/javascript")
)


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    body: str
    kind: str = HTML
    status: int = 200
    location: str | None = None  # where to go instead


Values = Mapping[str, Any]  # of the query, or of the JSON that was posted
Route = Callable[[Values], Reply]


def json_reply(values: Any, status: int = 200) -> Reply:
    """Plain values as JSON."""
    return Reply(json.dumps(values), JSON, status)


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
