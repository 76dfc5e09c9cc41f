"""What all processes have to agree on between two steps: whether to stop, and what time it is."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from train.engine.distributed import World

AGREE_EVERY = 0.5  # seconds
MOST_STEPS = 100  # without agreeing


class Pace:
    """The seconds of the run so far by rank 0's clock, and whether any process was told to stop.

    To agree costs a message between the processes and a wait for the GPU, so it is done twice a
    second and not at every step; in between the time stands still. Rank 0 says after how many steps
    to agree again, so that all ask at the same step.
    """

    def __init__(self, world: World, *, elapsed: float = 0.0) -> None:
        self.elapsed = elapsed
        self.is_stopped = False
        self._world = world
        self._start = time.monotonic() - elapsed
        self._steps, self._next = 0, 1

    def step(self, *, is_asked: bool) -> None:
        """A step is done; `is_asked`: this process was told to stop."""
        self._steps += 1
        if self._steps >= self._next:
            self.agree(is_asked=is_asked)

    def agree(self, *, is_asked: bool) -> None:
        """Ask all of the others, which ask now too."""
        now = time.monotonic() - self._start
        if self._world.size == 1:
            self.elapsed, self.is_stopped = now, self.is_stopped or is_asked
            return
        steps = AGREE_EVERY * self._steps / max(now - self.elapsed, 1e-9)
        said = [now, float(min(max(int(steps), 1), MOST_STEPS))] if self._world.is_main else [0, 0]
        answer = torch.tensor(
            [*said, float(is_asked)], dtype=torch.float64, device=self._world.device
        )
        self.elapsed, steps, asked = self._world.sum(answer).tolist()
        self.is_stopped = self.is_stopped or asked > 0
        self._steps, self._next = 0, int(steps)


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Set by SIGTERM or SIGINT; the step in progress is finished first."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(kind, lambda *_: stop.set()) for kind in kinds]
    try:
        yield stop
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
