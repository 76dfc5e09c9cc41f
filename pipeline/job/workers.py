"""`--workers N`: N processes that run the graph, each on what this process hands out.

    a worker asks   ("Tokenize", 12)   the stage it has come to, and the number of its elements
    this process    5                  the number of one that is not in work
                    None               all are done, by all workers

So the next stage begins when this one is complete, and the fastest worker does most. The process
that hands out never imports Beam: the fork server runs `fork_workers`, a worker `work`.
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
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import recv_handle
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from clozeline.pipeline.job.fork_server import Surroundings, exited, fork_server
from clozeline.pipeline.job.tasks import Outcome, Share
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.stages import Stage
from clozeline.pipeline.steps.steps import Steps

COMPLETE: Final = None  #: what this process answers when all elements of a stage are done


def run_in_workers(context: JobContext, share: Share | None = None, *, workers: int) -> Outcome:
    """Run the graph in at most `workers` processes, or in one on this share.

    Raises RuntimeError for what a step raises and for a worker that dies; the others end at once.
    """
    most = max(len(context.blocks), len(context.buckets))
    with ExitStack() as stack:
        number = 1 if share else min(workers, most)
        started = [stack.enter_context(Worker()) for _ in range(number)]
        for worker in started:  # all are importing meanwhile
            worker.send((context, share))
        outcomes = _hand_out(started)
    return Outcome(
        counters=sum((outcome.counters for outcome in outcomes), Counter[str]()),
        is_last=all(outcome.is_last for outcome in outcomes),
        worker_seconds=sum(outcome.worker_seconds for outcome in outcomes),
    )


def _hand_out(workers: Sequence["Worker"]) -> list[Outcome]:
    """Answer the workers until all have come to the end of the graph."""
    outcomes: list[Outcome] = []
    running, waiting = list(workers), list[Worker]()
    stage, todo = "", deque[int]()
    while running:
        ready = wait([worker.connection for worker in running])
        for worker in [worker for worker in running if worker.connection in ready]:
            said = worker.receive()
            if isinstance(said, Outcome):
                outcomes.append(said)
                running.remove(worker)
                continue
            if said[0] != stage:
                stage, todo = said[0], deque(range(said[1]))
            if todo:
                worker.send(todo.popleft())
            else:
                waiting.append(worker)
        if running and len(waiting) == len(running):
            for worker in waiting:
                worker.send(COMPLETE)
            waiting = []
    return outcomes


class Worker:
    """A process that runs the graph, and ends with the process that started it."""

    def __init__(self) -> None:
        self._fork_server = fork_server()
        self.connection, theirs = Pipe()
        with theirs:
            self.pid = self._fork_server.fork(theirs)
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        if not self._has_ended:  # it is done, unless another failed or Ctrl-C ends the job
            with suppress(OSError, RuntimeError):
                os.kill(self.pid, signal.SIGKILL)
                self._fork_server.wait(self.pid)

    def send(self, message: object) -> None:
        """Give it the job or the next element; if it is dead, `receive` says so."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Any:
        """What it says next. Raises RuntimeError if it failed or the process died."""
        try:
            said = self.connection.recv()
        except (EOFError, OSError) as error:
            self._has_ended = True
            raise exited(self._fork_server.wait(self.pid)) from error
        if isinstance(said, RuntimeError):
            raise said
        return said


class HandedOut:
    """The share of a worker: what the process that started it hands out."""

    is_of_task: ClassVar = False
    connection: ClassVar[Connection]  #: to that process
    answers: ClassVar["queue.SimpleQueue[int | None]"]

    def of(self, stage: Stage, steps: Steps) -> Iterator[Any]:
        elements = stage.elements(steps.context)
        while (number := self._ask(stage.label, len(elements))) is not COMPLETE:
            yield elements[number]

    def _ask(self, label: str, count: int) -> int | None:
        self.connection.send((label, count))
        return self.answers.get()


def fork_workers() -> None:
    """Import Beam, then fork a worker for each request, until the process that asks ends."""
    gc.disable()  # imports make much that stays: collections take time and find little
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and that its workers
    logging.disable(logging.ERROR)  # Beam misses what is not needed here; errors are reported below
    sys.meta_path.insert(0, NotHere("IPython"))  # Beam asks whether this is a notebook
    unused = NotHere("pandas", "pymongo", "boto3", "apache_beam.io.gcp.bigquery")
    sys.meta_path.insert(0, unused)  # Beam takes what it finds, and twice the time for it
    from clozeline.pipeline.job import graph  # noqa: F401

    pa.array([""])  # pyarrow takes pandas, too, with the first list, and asks once
    sys.meta_path.remove(unused)  # sources may need it
    requests = Connection(int(sys.argv[1]))
    gc.freeze()  # else the first collection of each worker would copy all pages
    gc.enable()
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
    said: Outcome | RuntimeError
    try:
        outcome = run_graph(context, share or HandedOut())
        said = outcome._replace(worker_seconds=time.process_time())
    except Exception as error:  # reported to the process that runs the job
        said = RuntimeError(str(error))
        said.add_note(f"in a worker:\n{traceback.format_exc()}")
    connection.send(said)
    threading.Event().wait()  # until `_receive` ends this process: Beam's own end takes longer


class NotHere:
    """Makes the import of some modules fail, as if they were not installed: a finder of Python."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names:
            raise ModuleNotFoundError(name)


def _receive(connection: Connection, answers: "queue.SimpleQueue[int | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            answers.put(connection.recv())
    os._exit(1)  # also from the middle of an element: the job is over
