"""A worker: runs the graph in Beam's in-process runner, on what its parent hands out.

python -P -m clozeline.pipeline.job.worker 7      (the number of its connection)
"""

import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, ClassVar

from clozeline.pipeline.job.tasks import Outcome, Stage
from clozeline.pipeline.job.workers import COMPLETE, Failure
from clozeline.pipeline.steps.steps import Steps


class HandedOut:
    """The share of a worker: what the process that started it hands out."""

    is_of_task: ClassVar = False
    connection: ClassVar[Connection]  #: to that process
    answers: ClassVar["queue.SimpleQueue[int | None]"]

    def of(self, stage: Stage, steps: Steps) -> Iterator[Any]:
        elements = stage.elements()
        while (number := self._ask(stage.label, len(elements))) is not COMPLETE:
            yield elements[number]

    def _ask(self, label: str, count: int) -> int | None:
        self.connection.send((label, count))
        return self.answers.get()


def work() -> None:
    """Run the graph of the job that comes through the connection, and report how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and that its workers
    logging.disable(logging.ERROR)  # Beam misses what is not needed here; errors are reported below
    with without_pandas():
        from clozeline.pipeline.job.graph import run_graph
    connection = Connection(int(sys.argv[1]))
    context, share = connection.recv()
    HandedOut.connection, HandedOut.answers = connection, queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, HandedOut.answers), daemon=True).start()
    said: Outcome | Failure
    try:
        said = run_graph(context, share or HandedOut())
    except Exception as error:  # reported to the process that runs the job
        said = Failure(str(error), traceback.format_exc())
    connection.send(said)
    threading.Event().wait()  # until `_receive` ends this process: Beam's own end takes longer


@contextmanager
def without_pandas() -> Iterator[None]:
    """Import Beam in half the time: it takes pandas if that is there, and the graph has no frames.

    After the block pandas can be imported, as sources may.
    """
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["pandas"]


def _receive(connection: Connection, answers: "queue.SimpleQueue[int | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            answers.put(connection.recv())
    os._exit(1)  # also from the middle of an element: the job is over
