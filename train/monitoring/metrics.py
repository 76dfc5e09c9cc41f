"""A run's metrics: the same numbers go to a progress line, a file and TensorBoard."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from clozeline.pipeline.common.errors import InputError, JobFailedError, advice
from clozeline.pipeline.common.paths import whole_file
from clozeline.pipeline.common.progress_bar import ProgressBar, is_watched
from clozeline.train.artifacts.run import TENSORBOARD
from clozeline.train.monitoring.health import Health, HealthWarning

METRICS = "metrics.jsonl"
PROGRESS_METRICS = ("mlm_loss", "nsp_accuracy", "heldout/mlm_loss")  # in the progress line


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
        self._run, self._writes = run, writes  # only one process of a run does
        self._health = health
        path = run / METRICS
        if writes:
            from tensorboard.summary.writer.record_writer import RecordWriter

            with _full_disk_in_one_line(run):
                _keep_until(path, start_step)
                self._file = path.open("a")
                (run / TENSORBOARD).mkdir(exist_ok=True)
                name = f"events.out.tfevents.{time.time():017.6f}"  # they are read in this order
                self._board = RecordWriter((run / TENSORBOARD / name).open("xb"))
                self._board.write(_event(0, file_version="brain.Event:2"))
                # It replaces the lines from this step on, of a process that was killed.
                self._board.write(_event(start_step + 1, session_log={"status": "START"}))
            for line in read_metrics(run) if health else ():
                self._warnings(line["step"], line)
        self._shown: dict[str, str] = {}  # in the progress line
        self._has_line = False
        self._bar = ProgressBar(
            desc="pretraining",
            total=max_steps,
            initial=start_step,
            unit="step",
            mininterval=0.5,
            dynamic_ncols=True,
            disable=not (writes and is_watched()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        if self._writes:
            quietly = suppress(JobFailedError) if kind else nullcontext()
            with quietly, _full_disk_in_one_line(self._run), ExitStack() as files:
                files.callback(self._file.close)
                files.callback(self._board.close)

    def advance(self) -> None:
        self._bar.update()
        if self._shown and not self._has_line:  # the first numbers do not wait
            self._bar.refresh()
            self._has_line = True

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write a line: `values` are numbers, or strings, which TensorBoard does not get.

        Raises JobFailedError where it cannot be written.
        """
        if not self._writes:
            return
        with _full_disk_in_one_line(self._run):
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
            numbers = [
                {"tag": name, "simple_value": value}
                for name, value in values.items()
                if not isinstance(value, str)
            ]
            self._board.write(_event(step, summary={"value": numbers}))
            self._board.flush()
        self._shown |= {x: f"{values[x]:.3f}" for x in PROGRESS_METRICS if x in values}
        self._bar.set_postfix(self._shown, refresh=False)
        for warning in self._warnings(step, values):
            self.warn(warning)

    def warn(self, warning: object) -> None:
        """Print a warning on a line of its own; only one process of a run does."""
        if self._writes:
            tqdm.write(f"warning: {warning}", file=sys.stderr)

    def _warnings(self, step: int, values: dict[str, Any]) -> list[HealthWarning]:
        return self._health.update(step, values) if self._health else []


def _event(step: int, **content: Any) -> bytes:
    """A record of TensorBoard's file."""
    from tensorboard.compat.proto.event_pb2 import Event

    event: bytes = Event(wall_time=time.time(), step=step, **content).SerializeToString()
    return event


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in order; none where there is no file yet.

    A last line that a killed process did not finish is left out. Raises InputError for any other
    line that is not of metrics.
    """
    path = run / METRICS
    return [values for values, _ in _finished_lines(path)] if path.exists() else []


def _finished_lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The object of each line, and its bytes; without a last line that a kill left unfinished."""
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise InputError(f"line {number} of {path} cannot be read; remove it and run again.")
        yield values, line


def _keep_until(path: Path, step: int) -> None:
    """Remove the lines after a step, left by a process that died before it saved."""
    if path.exists():
        earlier = [line for values, line in _finished_lines(path) if values["step"] <= step]
        with whole_file(path) as file:
            file.write(b"".join(earlier))


@contextmanager
def _full_disk_in_one_line(run: Path) -> Iterator[None]:
    """Raises JobFailedError where the metrics of a run cannot be written."""
    try:
        yield
    except OSError as error:
        raise JobFailedError(
            f"the metrics of {run} cannot be written ({error.strerror}); its checkpoints are "
            f"intact. To continue, {advice(error)} and add --resume."
        ) from error
