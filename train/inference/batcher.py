"""Dynamic batching: texts of concurrent requests share a forward pass.

While one batch is computed, the texts of new requests wait; the next batch takes all of them, up to
`max_batch`. So a single client does not wait, and many clients fill the batches.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

Row = tuple[str, ...]  # a text, or the two texts of a pair
Answer = asyncio.Future[NDArray[Any]]  # the probability of each class


class Batcher:
    """Answers the rows of one event loop in batches, which a thread computes."""

    def __init__(
        self,
        classify: Callable[[Sequence[Row]], NDArray[Any]],
        *,
        max_batch: int,
        max_waiting: int,
    ) -> None:
        self._classify, self._max_batch, self._max_waiting = classify, max_batch, max_waiting
        self._waiting: deque[tuple[Row, Answer]] = deque()
        self._thread = ThreadPoolExecutor(1)
        self._task: asyncio.Task[None] | None = None  # while rows wait

    @property
    def waiting(self) -> int:
        """Texts that no batch has taken yet."""
        return len(self._waiting)

    def submit(self, rows: Sequence[Row]) -> list[Answer] | None:
        """A future answer for each row; None if too many rows are waiting."""
        if self.waiting + len(rows) > self._max_waiting:
            return None
        loop = asyncio.get_running_loop()
        answers: list[Answer] = [loop.create_future() for _ in rows]
        self._waiting.extend(zip(rows, answers, strict=True))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return answers

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            rows = [row for row, _ in batch]
            try:
                found = await loop.run_in_executor(self._thread, self._classify, rows)
            except Exception as error:  # each request reports it, and the next batch is tried
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), probabilities in zip(batch, found, strict=True):
                if not answer.done():  # its request gave up
                    answer.set_result(probabilities)

    def _next_batch(self) -> list[tuple[Row, Answer]]:
        """The rows that wait, without those of requests that gave up."""
        batch: list[tuple[Row, Answer]] = []
        while self._waiting and len(batch) < self._max_batch:
            row, answer = self._waiting.popleft()
            if not answer.done():
                batch.append((row, answer))
        return batch
