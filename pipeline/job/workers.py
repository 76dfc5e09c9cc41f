"""`--workers N`: N processes that run the graph, each on what this process hands out.

    a worker asks   ("Tokenize", 12)   the stage it has come to, and the number of its elements
    this process    5                  the number of one that nobody has
                    None               all are done, by all workers: go on

So the next stage begins when this one is complete, and the fastest worker does most. This process
never imports Beam. A worker is a new interpreter: a fork would copy threads, locks and connections,
and `multiprocessing` would run the user's script in it.

    python -P -m clozeline.pipeline.job.workers 7      (the number of its connection)
"""

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.job.context import JobContext
from clozeline.pipeline.job.steps import Steps

COMPLETE: Final = None  #: what this process answers when all elements of a stage are done


class Stage(Protocol):
    """A step of the graph, as those who deal its elements see it."""

    @property
    def label(self) -> str: ...

    @property
    def done(self) -> str:
        """ "blocks tokenized", of which a waiting task says the number."""

    def elements(self) -> Sequence[Any]: ...

    def size(self, element: Any) -> int:
        """How much work an element is, compared with others."""

    def files(self, steps: Steps, element: Any) -> list[AnyPath]:
        """What is there when the element is done; known once all stages before are complete."""


class Share(Protocol):
    """What one process does of each stage; plain values, since Beam copies it."""

    is_of_task: ClassVar[bool]

    def of(self, stage: Stage, steps: Steps) -> Iterator[Any]:
        """The elements, one after the other is done; ends when all processes have done theirs."""


class Outcome(NamedTuple):
    """What a worker says at its end."""

    counters: Counter[str]  #: Beam's
    is_last: bool  #: whether it has finished the data set; else another task had


class Failure(NamedTuple):
    """Or this: what went wrong, and the traceback."""

    reason: str
    stack: str


def usable_cores() -> int:
    """How many cores this process may run on: on Linux its CPU affinity, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_workers(context: JobContext, share: Share | None = None, *, workers: int) -> Outcome:
    """Run the graph in at most `workers` processes, or in one on this share.

    Raises RuntimeError for what a step raises and for a worker that dies; the others end at once.
    """
    most = max(len(context.blocks), len(context.buckets))
    with ExitStack() as stack:
        number = 1 if share else min(workers, most)
        started = [stack.enter_context(Worker()) for _ in range(number)]
        for worker in started:  # all are importing meanwhile
            worker.send((context, share or HandedOut()))
        outcomes = _hand_out(started)
    counters = sum((outcome.counters for outcome in outcomes), Counter[str]())
    return Outcome(counters, all(outcome.is_last for outcome in outcomes))


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
        self.connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(number)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self._process.kill()  # it is done, unless another failed or Ctrl-C ends the job
        self._process.wait()

    def send(self, what: object) -> None:
        """Give it the job or the next element; if it is dead, `receive` says so."""
        with suppress(OSError):
            self.connection.send(what)

    def receive(self) -> Any:
        """What it says next. Raises RuntimeError if it failed or the process died."""
        try:
            said = self.connection.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"a worker process exited unexpectedly ({how})") from error
        if isinstance(said, Failure):
            raise RuntimeError(said.reason) from RuntimeError(f"in a worker:\n{said.stack}")
        return said


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


def work(connection: Connection) -> None:
    """Run the graph as the other end says, and tell it how that went."""
    logging.disable(logging.ERROR)  # Beam misses what is not needed here; errors are told below
    from clozeline.pipeline.job.graph import run_graph

    context, share = connection.recv()
    HandedOut.connection, HandedOut.answers = connection, queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, HandedOut.answers), daemon=True).start()
    said: Outcome | Failure
    try:
        said = run_graph(context, share)
    except Exception as error:  # reported to the process that runs the job
        said = Failure(str(error), traceback.format_exc())
    connection.send(said)
    threading.Event().wait()  # until `_receive` ends this process: Beam's own end takes longer


def _receive(connection: Connection, answers: "queue.SimpleQueue[int | None]") -> None:
    with suppress(EOFError, OSError):
        while True:
            answers.put(connection.recv())
    os._exit(1)  # also from the middle of an element: the job is over


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and that its workers
    from clozeline.pipeline.job import workers  # not `__main__`, which Beam could not copy

    workers.work(Connection(int(sys.argv[1])))
