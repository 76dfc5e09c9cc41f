"""A run's metrics: the same numbers go to a progress line, a file and TensorBoard."""

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from clozeline.pipeline.common.errors import JobFailedError, one_line
from clozeline.pipeline.common.progress_bar import ProgressBar, in_command, print_progress
from clozeline.pipeline.common.units import time_in_words
from clozeline.train.artifacts.run import TENSORBOARD
from clozeline.train.monitoring.health import Health, HealthWarning
from clozeline.train.monitoring.json_lines import finished_lines, full_disk_in_one_line, keep_until
from clozeline.train.monitoring.trackers import Tracker, scalars

METRICS = "metrics.jsonl"
PROGRESS_METRICS = ("mlm_loss", "nsp_accuracy", "heldout/mlm_loss")  # in the progress line
#: Steps after the first two, which may compile, and their time, from which the end is estimated.
COMPILING_STEPS = 2
FEW_STEPS, MANY_STEPS, MEASURED_SECONDS = 3, 20, 2.0
WORTH_AN_ESTIMATE, LONG = 60.0, 4 * 3600.0  # seconds; LONG comes with advice

Hook = Callable[[threading.ExceptHookArgs], object]


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
        tracker: Tracker | None = None,
    ) -> None:
        self._run, self._writes = run, writes  # only one process of a run does
        self._health, self._tracker = health, tracker
        path = run / METRICS
        if writes:
            from torch.utils.tensorboard import SummaryWriter

            keep_until(path, start_step, is_right=_is_right)
            self._file = path.open("a")
            self._board = SummaryWriter(str(run / TENSORBOARD), purge_step=start_step + 1)
            for line in read_metrics(run) if health else ():
                self._warnings(line["step"], line)
        self._progress = _Progress(start_step, max_steps, is_shown=writes)

    def __enter__(self) -> Self:
        self._hook = threading.excepthook
        if self._writes:
            threading.excepthook = _without_tensorboard(self._hook)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._progress.close()
        with ExitStack() as last:
            last.callback(self._track, lambda tracker: tracker.close(is_failed=kind is not None))
            last.callback(setattr, threading, "excepthook", self._hook)
            if self._writes:
                quietly = suppress(JobFailedError) if kind else nullcontext()
                with (
                    quietly,
                    full_disk_in_one_line(f"the metrics of {self._run}"),
                    ExitStack() as files,
                ):
                    files.callback(self._file.close)
                    files.callback(self._board.close)

    def advance(self) -> None:
        self._progress.advance()

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write a line: `values` are numbers, or strings, which TensorBoard does not get.

        Raises JobFailedError where it cannot be written.
        """
        if not self._writes:
            return
        with full_disk_in_one_line(f"the metrics of {self._run}"):
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
            for name, value in values.items():
                if not isinstance(value, str):
                    self._board.add_scalar(name, value, step)
            self._board.flush()  # otherwise a kill loses up to two minutes of them
        self._track(lambda tracker: tracker.log(step, scalars(values)))
        self._progress.show(
            {name: f"{values[name]:.3f}" for name in PROGRESS_METRICS if name in values}
        )
        for warning in self._warnings(step, values):
            self.warn(warning)

    def _track(self, do: Callable[[Tracker], None]) -> None:
        """Training does not depend on a tracker: one that fails is left with a warning."""
        if self._tracker:
            try:
                do(self._tracker)
            except Exception as error:  # each library has its own
                self._tracker = None
                self.warn(f"--track: {one_line(error)}; this run is not tracked from here on.")

    def warn(self, warning: object) -> None:
        """Print a warning on a line of its own; only one process of a run does."""
        if self._writes:
            tqdm.write(f"warning: {warning}", file=sys.stderr)

    def _warnings(self, step: int, values: dict[str, Any]) -> list[HealthWarning]:
        return self._health.update(step, values) if self._health else []


def _without_tensorboard(hook: Hook) -> Hook:
    """The hook without TensorBoard's errors, which its next call raises as well."""

    def print_error(error: threading.ExceptHookArgs) -> None:
        if type(error.thread).__name__ != "_AsyncWriterThread":
            hook(error)

    return print_error


class _Progress:
    """The progress line, and a single estimate of the end."""

    def __init__(self, start_step: int, max_steps: int | None, *, is_shown: bool) -> None:
        self._has_line, self._has_estimate = False, False
        self._shown: dict[str, str] = {}
        self._steps, self._measured_from = 0, 0.0  # of this process; when compilation was done
        self._bar = ProgressBar(
            desc="pretraining",
            total=max_steps,
            initial=start_step,
            unit="step",
            mininterval=0.5,
            dynamic_ncols=True,
            disable=not (is_shown and in_command()),
        )

    def advance(self) -> None:
        self._bar.update()
        self._steps += 1
        if self._steps == COMPILING_STEPS:
            self._measured_from = time.monotonic()
        if not self._bar.disable and self._is_measured() and self._bar.total:
            self._has_estimate = True
            self._estimate_end()
        if self._shown and not self._has_line:
            self._bar.refresh()
            self._has_line = True

    def _is_measured(self) -> bool:
        """Whether the speed is known now, and was not before."""
        steps, seconds = self._steps - COMPILING_STEPS, time.monotonic() - self._measured_from
        is_enough = steps >= FEW_STEPS and (steps >= MANY_STEPS or seconds >= MEASURED_SECONDS)
        return is_enough and not self._has_estimate

    def _estimate_end(self) -> None:
        each = (time.monotonic() - self._measured_from) / (self._steps - COMPILING_STEPS)
        left = each * (self._bar.total - self._bar.n)
        if left < WORTH_AN_ESTIMATE:
            return
        end = f"{each:.2g} seconds per step; expected end: {at_time(left)}, "
        end += f"{time_in_words(left)} from now"
        if left > LONG:
            end += ". For less, give --for 2h, or a smaller model such as --preset nano."
        print_progress(end)

    def show(self, numbers: dict[str, str]) -> None:
        self._shown |= numbers
        self._bar.set_postfix(self._shown, refresh=False)

    def close(self) -> None:
        self._bar.close()


def at_time(seconds: float) -> str:
    """The time of day in so many seconds, with the date if that is another day."""
    today = datetime.now()
    then = today + timedelta(seconds=seconds)
    return f"{then:%H:%M}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in order; none where there is no file yet.

    A last line that a killed process did not finish is left out. Raises InputError for any other
    line that is not of metrics.
    """
    path = run / METRICS
    lines = finished_lines(path, is_right=_is_right) if path.exists() else ()
    return [values for values, _ in lines]


def _is_right(_: int, values: dict[str, Any]) -> bool:
    return isinstance(values.get("step"), int)
