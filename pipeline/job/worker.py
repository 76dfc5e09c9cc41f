"""A worker: runs the graph in Beam's in-process runner, on what the job's process hands out.

The fork server of workers.py runs `fork_workers`, a worker `work`.
"""

import gc
import logging
import os
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, ClassVar

import pyarrow as pa

from clozeline.pipeline.job.tasks import Outcome, Stage
from clozeline.pipeline.job.workers import COMPLETE, Failure, Surroundings
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


def fork_workers() -> None:
    """Import Beam, then fork a worker for each request, until the process that asks ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and that its workers
    logging.disable(logging.ERROR)  # Beam misses what is not needed here; errors are reported below
    sys.meta_path.insert(0, NotHere("IPython"))  # Beam asks whether this is a notebook
    with without_pandas():
        from clozeline.pipeline.job import graph  # noqa: F401

        pa.array([""])  # pyarrow takes pandas, too, with the first list, and asks once
    requests = Connection(int(sys.argv[1]))
    gc.freeze()  # else the first collection of each worker would copy all pages
    with suppress(EOFError, OSError):
        while True:
            request = requests.recv()
            if isinstance(request, Surroundings):
                requests.send(_fork(requests, request))
            else:
                requests.send(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]))


def _fork(requests: Connection, surroundings: Surroundings) -> int:
    """Start a worker; return its process id. In the worker, this ends the process."""
    number = recv_handle(requests)
    if pid := os.fork():
        os.close(number)
        return pid
    requests.close()
    sys.path[:] = surroundings.import_path
    os.environ.clear()
    os.environ.update(surroundings.environment)
    os.chdir(surroundings.folder)
    for which, limit in surroundings.limits.items():
        resource.setrlimit(which, limit)
    with suppress(EOFError):  # the job has ended already
        work(Connection(number))
    os._exit(1)


def work(connection: Connection) -> None:
    """Run the graph of the job that comes through the connection, and report how it ended."""
    from clozeline.pipeline.job.graph import run_graph

    context, share = connection.recv()
    HandedOut.connection, HandedOut.answers = connection, queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, HandedOut.answers), daemon=True).start()
    said: Outcome | Failure
    try:
        outcome = run_graph(context, share or HandedOut())
        said = outcome._replace(worker_seconds=time.process_time())
    except Exception as error:  # reported to the process that runs the job
        said = Failure(str(error), traceback.format_exc())
    connection.send(said)
    threading.Event().wait()  # until `_receive` ends this process: Beam's own end takes longer


class NotHere:
    """Makes the import of some modules fail, as if they were not installed: a finder of Python."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names:
            raise ModuleNotFoundError(name)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Import Beam in half the time: it takes pandas if that is there, and the graph has no frames.

    After the block pandas can be imported, as sources may.
    """
    finder = NotHere("pandas")
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _receive(connection: Connection, answers: "queue.SimpleQueue[int | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            answers.put(connection.recv())
    os._exit(1)  # also from the middle of an element: the job is over
