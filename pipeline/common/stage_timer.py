"""CPU seconds by stage; part of the counts of a block or shard, summed up in job.json."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class StageTimer:
    """CPU seconds of the calling thread, by name of the stage.

    Per thread, because a Beam runner may run several stages as threads of one process.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time that the `with` block takes."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] += time.thread_time() - start  # type: ignore[assignment]

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; add the time it takes to produce them, not to consume them."""
        iterator, end = iter(items), object()
        while True:
            with self.stage(name):
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
