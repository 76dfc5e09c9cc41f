"""The shards that a rank is reading, and those it reads next, fetched by a few threads.

    keep([7, 2], ahead=[5])    # 7 and 2 are wanted now, 5 soon; all others are let go
    shards[7]                  # waits until shard 7 is here

A shard is fetched once while it is kept. Several are fetched at a time (`fetches_for`), those
wanted now first, so neither a store's latency nor the checks of a shard stall training.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from clozeline.pipeline.common.paths import AnyPath, is_local
from clozeline.pipeline.dataset.schema import Examples

LOCAL_FETCHES = 8  # at a time: these check shards, which takes a core each
FETCHES = 32  # from a store: these wait; the first batch of 64 streams needs as many shards


def fetches_for(folder: AnyPath) -> int:
    """How many shards of a folder are fetched at a time."""
    return LOCAL_FETCHES if is_local(folder) else FETCHES


class OpenShards:
    """Reads shards by number with `read`. `opened` has shards that are open already.

    It is a context manager: at its end nothing more is fetched, and `opened` has the open shards,
    so that the next reader need not fetch them again. With `threads` 0 a shard is read when it is
    asked for, and none is fetched ahead.
    """

    def __init__(
        self,
        read: Callable[[int], Examples],
        opened: dict[int, Examples],
        *,
        threads: int = LOCAL_FETCHES,
    ) -> None:
        self._read = read
        self._opened, self._before = dict(opened), opened
        self._coming: dict[int, Future[Examples]] = {}
        self._threads = ThreadPoolExecutor(threads, "fetch") if threads else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads:
            # Without waiting for the threads: the garbage collector may have called this in one.
            self._threads.shutdown(wait=False, cancel_futures=True)
        for shard, found in self._coming.items():
            if found.done() and not found.cancelled() and found.exception() is None:
                self._opened[shard] = found.result()
        self._before.clear()
        self._before.update(self._opened)

    def keep(self, now: Iterable[int], *, ahead: Iterable[int]) -> None:
        """Drop all other shards, and start fetching those of these that are not here yet."""
        wanted = dict.fromkeys([*now, *ahead])
        for shard in self._opened.keys() - wanted.keys():
            del self._opened[shard]
        for shard in self._coming.keys() - wanted.keys():
            self._coming.pop(shard).cancel()
        if self._threads:
            for shard in wanted:
                if shard not in self._opened and shard not in self._coming:
                    self._coming[shard] = self._threads.submit(self._read, shard)

    def __getitem__(self, shard: int) -> Examples:
        """The rows of a shard, which is read again if that failed before. Raises what it raises."""
        coming = self._coming.pop(shard, None)
        if coming and not (coming.done() and coming.exception()):
            self._opened[shard] = coming.result()
        elif shard not in self._opened:
            self._opened[shard] = self._read(shard)
        return self._opened[shard]
