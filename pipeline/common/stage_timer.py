"""Where the CPU seconds go, by stage; travels with the counts and ends in job.json."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class StageTimer:
    """CPU seconds of the calling thread, by the name of the stage.

    The thread's and not the process's: in a runner with threads, others work at the same time.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what the block takes."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] += time.thread_time() - start  # type: ignore[assignment]

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items; count what it takes to make them, and not what is done with them."""
        iterator, end = iter(items), object()
        while True:
            with self.stage(name):
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
