"""Dynamic batching: texts of concurrent requests share a forward pass.

While one batch is computed, the texts of new requests wait; the next batch takes all of them, up to
`max_batch`. So a single client does not wait, and many clients fill the batches.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = tuple[str, ...]  # a text, or the two texts of a pair
Answer = Future[NDArray[Any]]  # the probability of each class


class Batcher:
    """Answers rows in batches, in a thread of its own, until it is closed."""

    def __init__(
        self,
        classify: Callable[[Sequence[Row]], NDArray[Any]],
        *,
        max_batch: int,
        max_waiting: int,
    ) -> None:
        self._classify, self._max_batch, self._max_waiting = classify, max_batch, max_waiting
        self._waiting: deque[tuple[Row, Answer]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.batches = self.texts = 0  # computed so far
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> list[Answer] | None:
        """A future answer for each row; None if too many rows are waiting."""
        answers: list[Answer] = [Future() for _ in rows]
        with self._changed:
            if len(self._waiting) + len(rows) > self._max_waiting:
                return None
            self._waiting.extend(zip(rows, answers, strict=True))
            self._changed.notify()
        return answers

    @property
    def waiting(self) -> int:
        """Texts that no batch has taken yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Answer what is waiting, then end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            rows = [row for row, _ in batch]
            try:
                probabilities = self._classify(rows)
            except Exception as error:  # each request reports it, and the next batch is tried
                for _, answer in batch:
                    answer.set_exception(error)
                continue
            self.batches, self.texts = self.batches + 1, self.texts + len(batch)
            for (_, answer), row in zip(batch, np.asarray(probabilities), strict=True):
                answer.set_result(row)

    def _next_batch(self) -> list[tuple[Row, Answer]]:
        """The rows that wait, without those of requests that gave up; empty once it is closed."""
        batch: list[tuple[Row, Answer]] = []
        with self._changed:
            while not batch:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return []
                while self._waiting and len(batch) < self._max_batch:
                    row, answer = self._waiting.popleft()
                    if answer.set_running_or_notify_cancel():
                        batch.append((row, answer))
        return batch
