"""JSON lines that a run appends to: a line that a killed process did not finish is left out.

b'{"step": 1, "loss": 2.0}\\n{"st'  ->  [({"step": 1, "loss": 2.0}, b'{"step": 1, ...}\\n')]
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.errors import InputError


def finished_lines(
    path: Path, *, is_right: Callable[[int, dict[str, Any]], bool]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The object of each line, and its bytes; `is_right` gets a line's number, from 1, and object.

    Raises InputError for a line that is not right.
    """
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or not is_right(number, values):
            raise InputError(f"line {number} of {path} cannot be read; remove it and run again.")
        yield values, line
