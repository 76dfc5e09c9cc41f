"""What a run says of itself: the same numbers to a progress line, a file and TensorBoard."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"


class MetricsLog:
    """Writes each line of metrics to all three places; used as a context.

    Lines of `metrics.jsonl` after `start_step` belong to a life of the run that did not survive and
    are removed, so each step stands there once.
    """

    def __init__(self, run: Path, *, start_step: int, max_steps: int, writes: bool) -> None:
        self._writes = writes  # one process of a run does
        path = run / METRICS
        if writes:
            from torch.utils.tensorboard import SummaryWriter

            _keep_until(path, start_step)
            self._file = path.open("a")
            self._board = SummaryWriter(str(run / TENSORBOARD), purge_step=start_step + 1)
        self._bar = tqdm(
            desc="pretraining",
            total=max_steps,
            initial=start_step,
            unit="step",
            file=sys.stderr,
            mininterval=0.5 if sys.stderr.isatty() else 15.0,
            disable=not writes,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        if self._writes:
            self._board.close()
            self._file.close()

    def advance(self) -> None:
        """One step of the progress line."""
        self._bar.update()

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line: `values` are numbers, or strings, which TensorBoard is not told."""
        if not self._writes:
            return
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if not isinstance(value, str):
                self._board.add_scalar(name, value, step)
        shown = {
            name: f"{values[name]:.3f}" for name in ("mlm_loss", "nsp_accuracy") if name in values
        }
        self._bar.set_postfix(shown, refresh=False)


class Stopwatch:
    """Time and real tokens since the last look."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._waited = 0.0
        self.tokens = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in which the model has no batch."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    def look(self) -> tuple[float, float, int]:
        """Seconds since the last look, seconds of waiting among them, tokens; starts anew."""
        now = time.perf_counter()
        seen = now - self._start, self._waited, self.tokens
        self._start, self._waited, self.tokens = now, 0.0, 0
        return seen


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in order."""
    return [json.loads(line) for line in (run / METRICS).read_text().splitlines()]


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    lines = path.read_text().splitlines(keepends=True)
    # A killed process may have left half a line at the end.
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(kept))
    partial.replace(path)
