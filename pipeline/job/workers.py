"""`--workers N`: N processes that run the graph, each on what this process hands out.

    a worker asks   ("Tokenize", 12)   the stage it has come to, and the number of its elements
    this process    5                  the number of one that is not in work
                    None               all are done, by all workers

So the next stage begins when this one is complete, and the fastest worker does most. This process
never imports Beam. A worker is a new interpreter: a fork would copy threads, locks and connections,
and `multiprocessing` would run the user's script in it.

    python -P -c "from clozeline.pipeline.job.worker import work; work()" 7
"""

import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Pipe, wait
from typing import Any, Final, NamedTuple, Self

from clozeline.pipeline.job.tasks import Outcome, Share
from clozeline.pipeline.steps.context import JobContext

COMPLETE: Final = None  #: what this process answers when all elements of a stage are done
PROGRAM: Final = "from clozeline.pipeline.job.worker import work; work()"


class Failure(NamedTuple):
    """What a worker says if its graph failed: why, and the traceback."""

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
            worker.send((context, share))
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
                [sys.executable, "-P", "-c", PROGRAM, str(number)],
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
