"""Progress as a bar in a terminal, and as lines in a log, where nothing can be overwritten.

tokenizing:  54%|###  | 135M/250M [00:14<00:12, 9.51MB/s]      a terminal
tokenizing: 54% 135M/250M [00:14<00:12, 9.51MB/s]              a log: a line every 15 seconds

Commands and notebooks show it; functions that another program calls are silent.
"""

import io
import sys
from typing import Any

import click
from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15.0  #: in a log
LOG_LINE = (
    "{desc}: {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
)
WITHOUT_TOTAL = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"


def is_watched() -> bool:
    """Whether this thread runs a command, or this process a notebook."""
    return click.get_current_context(silent=True) is not None or in_notebook()


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, whose output can be overwritten like a terminal's."""
    return "ipykernel" in sys.modules


def print_progress(line: str) -> None:
    """Print a line above the bars, on standard error."""
    if is_watched():
        tqdm.write(line, file=sys.stderr)


class ProgressBar(tqdm):  # type: ignore[misc]
    """tqdm's bar; where `file` (standard error) is not a terminal, it prints lines instead.

    It prints a line at most every 15 seconds, at `refresh`, and at the end.
    """

    def __init__(self, *, file: Any = None, **settings: Any) -> None:
        # A notebook shows what is written to `sys.stderr`, and not what its terminal gets.
        file = sys.stderr if file is None or in_notebook() else file
        self._log = None if file.isatty() or in_notebook() else file
        self._last_line = ""
        if self._log:
            file, interval = io.StringIO(), SECONDS_BETWEEN_LINES
            settings |= {"dynamic_ncols": False, "miniters": 1}
            settings |= {"mininterval": interval, "maxinterval": interval}
        super().__init__(file=file, **{"disable": not is_watched(), **settings})

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Draw the bar, or print its line once there is progress, and never the same line twice."""
        if not self._log:
            return super().display(msg, 0 if in_notebook() else pos)  # no line but the last moves
        self.bar_format = LOG_LINE if self.total else WITHOUT_TOTAL  # it may be known later
        line = str(self)
        is_new = self.n > self.initial or self.postfix
        if msg is None and is_new and line != self._last_line:
            print(line, file=self._log, flush=True)
            self._last_line = line
        return True
