"""What a run says of itself: the same numbers to a progress line, a file and TensorBoard."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from pipeline.common.errors import InputError
from pipeline.common.paths import whole_file
from train.artifacts.run import TENSORBOARD
from train.monitoring.health import Health, HealthWarning

METRICS = "metrics.jsonl"
SHOWN = ("mlm_loss", "nsp_accuracy", "heldout/mlm_loss")  # in the progress line
SECONDS_BETWEEN_LINES = 15.0  # of progress, where the output is a log and not a terminal
LOG_LINE = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class MetricsLog:
    """Writes each line of metrics to all three places; used as a context.

    Lines of `metrics.jsonl` after `start_step` were written by a process that died before it saved;
    they are removed, so each step is there once. What `health` finds in a line is printed as a
    warning, except in lines of an earlier process, which has printed it.
    """

    def __init__(
        self,
        run: Path,
        *,
        start_step: int,
        max_steps: int | None,
        writes: bool,
        health: Health | None = None,
    ) -> None:
        self._writes = writes  # one process of a run does
        self._health = health
        path = run / METRICS
        if writes:
            from torch.utils.tensorboard import SummaryWriter

            _keep_until(path, start_step)
            self._file = path.open("a")
            self._board = SummaryWriter(str(run / TENSORBOARD), purge_step=start_step + 1)
            for line in read_metrics(run) if health else ():
                self._look(line["step"], line)
        self._progress = _Progress(start_step, max_steps, is_shown=writes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        if self._writes:
            self._board.close()
            self._file.close()

    def advance(self) -> None:
        """One step of the progress line."""
        self._progress.advance()

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line: `values` are numbers, or strings, which TensorBoard does not get."""
        if not self._writes:
            return
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if not isinstance(value, str):
                self._board.add_scalar(name, value, step)
        self._board.flush()  # or a killed process takes two minutes of them along
        self._progress.show({name: f"{values[name]:.3f}" for name in SHOWN if name in values})
        for warning in self._look(step, values):
            self.warn(warning)

    def warn(self, warning: object) -> None:
        """A line of its own beside the progress; one process of a run says it."""
        if self._writes:
            tqdm.write(f"warning: {warning}", file=sys.stderr)

    def _look(self, step: int, values: dict[str, Any]) -> list[HealthWarning]:
        return self._health.update(step, values) if self._health else []


class _Progress:
    """A bar in a terminal; in a log file, where nothing is overwritten, a line now and then."""

    def __init__(self, start_step: int, max_steps: int | None, *, is_shown: bool) -> None:
        self._is_log = is_shown and not sys.stderr.isatty()
        self._next_line = 0.0
        self._shown: dict[str, str] = {}
        self._bar = tqdm(
            desc="pretraining",
            total=max_steps,
            initial=start_step,
            unit="step",
            file=io.StringIO() if self._is_log else sys.stderr,
            bar_format=LOG_LINE if self._is_log else None,
            mininterval=float("inf") if self._is_log else 0.5,
            dynamic_ncols=not self._is_log,
            disable=not is_shown,
        )

    def advance(self) -> None:
        self._bar.update()
        if self._is_log and self._shown and self._bar.format_dict["elapsed"] >= self._next_line:
            self._print_line()

    def show(self, numbers: dict[str, str]) -> None:
        self._shown |= numbers
        self._bar.set_postfix(self._shown, refresh=False)

    def close(self) -> None:
        if self._is_log:
            self._print_line()
        self._bar.close()

    def _print_line(self) -> None:
        self._next_line = self._bar.format_dict["elapsed"] + SECONDS_BETWEEN_LINES
        print(self._bar, file=sys.stderr, flush=True)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in order; none where there is no file yet.

    A last line that a killed process did not finish is left out. Raises InputError for any other
    line that is not of metrics.
    """
    path = run / METRICS
    return [values for values, _ in _lines(path)] if path.exists() else []


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise InputError(
                f"line {number} of {path} is not a line of metrics; remove it and run again."
            )
        yield values, line


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [line for values, line in _lines(path) if values["step"] <= step]
    with whole_file(path) as file:
        file.write(b"".join(kept))
