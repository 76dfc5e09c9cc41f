"""What all processes agree on between two steps: to stop, how much time has passed, and whether a
batch that comes soon cannot be read.
"""

import signal
import time
from contextlib import ExitStack
from typing import Self

import torch

from clozeline.pipeline.common.signals import handled
from clozeline.train.engine.distributed import World

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SYNC_SECONDS = 0.5
MAX_STEPS_BETWEEN_SYNCS = 100


class StopAndBudget:
    """Requests to any process, and the seconds of the run by rank 0's clock; a context.

    Inside the context SIGTERM and SIGINT are requests to stop: the step in progress is finished
    first. Processes agree twice a second instead of at every step, because
    agreeing costs a collective and a wait for the GPU; `elapsed` and the flags change only then.
    Rank 0 decides how many steps there are until the next time, so that all processes agree at the
    same step.
    """

    def __init__(self, world: World, *, elapsed: float = 0.0) -> None:
        self.elapsed = elapsed
        self.is_stopped = False
        self.is_bad_ahead = False  # a process has met a bad shard, whose batch comes soon
        self._world = world
        self._start = time.monotonic() - elapsed
        self._steps, self._next_sync = 0, 1
        # A request to this process. Not an Event, whose lock a second signal would wait for.
        self._stop = False
        self._handled = ExitStack()

    def __enter__(self) -> Self:
        self._handled.enter_context(handled(SIGNALS, self._receive))
        return self

    def _receive(self, *_: object) -> None:
        self._stop = True

    def __exit__(self, *_: object) -> None:
        self._handled.close()

    def after_step(self, *, stop: bool = False, is_bad_ahead: bool = False) -> None:
        """Call after every step; `stop`: this process has a reason of its own to stop."""
        self._steps += 1
        if self._steps >= self._next_sync:
            self.sync(stop=stop, is_bad_ahead=is_bad_ahead)

    def sync(self, *, stop: bool = False, is_bad_ahead: bool = False) -> None:
        """Agree with all other processes, which call this too."""
        elapsed, stop = time.monotonic() - self._start, stop or self._stop
        if self._world.size == 1:
            self.elapsed = elapsed
        else:
            steps = SYNC_SECONDS * self._steps / max(elapsed - self.elapsed, 1e-9)
            steps = min(max(int(steps), 1), MAX_STEPS_BETWEEN_SYNCS)
            from_main = [elapsed, steps] if self._world.is_main else [0, 0]
            sums = torch.tensor([*from_main, stop, is_bad_ahead], dtype=torch.float64)
            sums = self._world.sum(sums.to(self._world.device))
            self.elapsed, steps, stop, is_bad_ahead = sums.tolist()
            self._steps, self._next_sync = 0, int(steps)
        self.is_stopped = self.is_stopped or stop > 0
        self.is_bad_ahead = self.is_bad_ahead or is_bad_ahead > 0
