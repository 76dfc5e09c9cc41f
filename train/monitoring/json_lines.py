"""JSON lines that a run appends to: a line that a killed process did not finish is left out.

b'{"step": 1, "loss": 2.0}\\n{"st'  ->  [({"step": 1, "loss": 2.0}, b'{"step": 1, ...}\\n')]
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.errors import InputError, JobFailedError, advice
from clozeline.pipeline.common.paths import whole_file

IsRight = Callable[[int, dict[str, Any]], bool]


def finished_lines(path: Path, *, is_right: IsRight) -> Iterator[tuple[dict[str, Any], bytes]]:
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


def keep_until(path: Path, step: int, *, is_right: IsRight) -> None:
    """Remove the lines after a step, which a process wrote that died before it saved.

    A line without a step is a header; a file in which no other line is left is removed.
    """
    if not path.exists():
        return
    lines = finished_lines(path, is_right=is_right)
    earlier = [(values, line) for values, line in lines if values.get("step", 0) <= step]
    if not any("step" in values for values, _ in earlier):
        path.unlink()
        return
    with whole_file(path) as file:
        file.write(b"".join(line for _, line in earlier))


@contextmanager
def full_disk_in_one_line(what: str) -> Iterator[None]:
    """Raises JobFailedError where `what` cannot be written: "the metrics of work/run"."""
    try:
        yield
    except OSError as error:
        raise JobFailedError(
            f"{what} cannot be written ({error.strerror}); its checkpoints are intact. To "
            f"continue, {advice(error)} and add --resume."
        ) from error
