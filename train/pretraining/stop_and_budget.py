"""What all processes agree on between two steps: whether to stop, and how much time has passed."""

import signal
import threading
import time
from typing import Any, Self

import torch

from clozeline.train.engine.distributed import World

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SYNC_SECONDS = 0.5
MAX_STEPS_BETWEEN_SYNCS = 100


class StopAndBudget:
    """Stop requests to any process, and the seconds of the run by rank 0's clock; a context.

    Inside the context SIGTERM and SIGINT are stop requests: the step in progress is finished first.
    Processes agree twice a second instead of at every step, because agreeing costs a collective and
    a wait for the GPU; `elapsed` and `is_stopped` change only then. Rank 0 decides how many steps
    there are until the next time, so that all processes agree at the same step.
    """

    def __init__(self, world: World, *, elapsed: float = 0.0) -> None:
        self.elapsed = elapsed
        self.is_stopped = False
        self._world = world
        self._start = time.monotonic() - elapsed
        self._steps, self._next_sync = 0, 1
        self._requested = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}  # as they were before

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other one receives signals
            for kind in SIGNALS:
                self._handlers[kind] = signal.signal(kind, lambda *_: self._requested.set())
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._handlers.items():
            signal.signal(kind, handler)

    def after_step(self, *, stop: bool = False) -> None:
        """Call after every step; `stop`: this process has a reason of its own to stop."""
        self._steps += 1
        if self._steps >= self._next_sync:
            self.sync(stop=stop)

    def sync(self, *, stop: bool = False) -> None:
        """Agree with all other processes, which call this too."""
        now, stop = time.monotonic() - self._start, stop or self._requested.is_set()
        if self._world.size == 1:
            self.elapsed, self.is_stopped = now, self.is_stopped or stop
            return
        steps = SYNC_SECONDS * self._steps / max(now - self.elapsed, 1e-9)
        steps = min(max(int(steps), 1), MAX_STEPS_BETWEEN_SYNCS)
        from_main = [now, steps] if self._world.is_main else [0, 0]
        sums = torch.tensor([*from_main, stop], dtype=torch.float64, device=self._world.device)
        self.elapsed, steps, stops = self._world.sum(sums).tolist()
        self.is_stopped = self.is_stopped or stops > 0
        self._steps, self._next_sync = 0, int(steps)
