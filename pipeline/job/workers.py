"""`--workers N`: N processes that run the graph, each on what this process hands out.

    a worker asks   ("Tokenize", 12)   the stage it has come to, and the number of its elements
    this process    5                  the number of one that is not in work
                    None               all are done, by all workers

So the next stage begins when this one is complete, and the fastest worker does most. This process
never imports Beam: a *fork server* does, once, and forks a worker for each request. It is a new
interpreter without threads of Python, since a fork of this process would copy threads, locks and
connections, and `multiprocessing` would run the user's script in it.

    python -P -c "from clozeline.pipeline.job.worker import fork_workers; fork_workers()" 7
"""

import atexit
import os
import resource
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from clozeline.pipeline.job.tasks import Outcome, Share
from clozeline.pipeline.steps.context import JobContext

LIMITS: Final = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS)
COMPLETE: Final = None  #: what this process answers when all elements of a stage are done
PROGRAM: Final = "from clozeline.pipeline.job.worker import fork_workers; fork_workers()"


class Surroundings(NamedTuple):
    """What a worker takes from the process that runs the job, as they are when it starts."""

    folder: str
    environment: dict[str, str]
    import_path: list[str]
    limits: dict[int, tuple[int, int]]


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


class ForkServer:
    """The process that forks the workers of this one, and ends with it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(number)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
            )
        atexit.register(self.close)

    @property
    def is_usable(self) -> bool:
        """Whether it is alive, answers the last request, and belongs to this process."""
        is_ours = self._owner == os.getpid() and not self._connection.closed
        return is_ours and self._process.poll() is None

    def close(self) -> None:
        """End the process, whose workers have ended."""
        self._connection.close()
        if self._owner == os.getpid():
            self._process.kill()  # it may still be importing
            self._process.wait()

    def fork(self, theirs: Connection) -> int:
        """Start a worker with its end of a connection; return its process id."""
        limits = {which: resource.getrlimit(which) for which in LIMITS}
        here = Surroundings(str(Path.cwd()), dict(os.environ), sys.path, limits)
        return self._ask(here, theirs)

    def wait(self, pid: int) -> int:
        """The exit code of a worker, once it has ended."""
        return self._ask(pid)

    def _ask(self, request: Surroundings | int, theirs: Connection | None = None) -> int:
        """Raises RuntimeError if the process died."""
        try:
            self._connection.send(request)
            if theirs:
                send_handle(self._connection, theirs.fileno(), self._process.pid)
            return int(self._connection.recv())
        except (EOFError, OSError) as error:
            raise exited(self._process.wait()) from error
        except BaseException:  # Ctrl-C: the answer would be taken for that of the next request
            self._connection.close()
            raise


_FORK_SERVERS: list[ForkServer] = []  #: at most one, which the next job of this process uses, too


def fork_server() -> ForkServer:
    """The fork server of this process; it is started, and imports Beam, unless it is there."""
    if not (_FORK_SERVERS and _FORK_SERVERS[0].is_usable):
        _FORK_SERVERS[:] = [ForkServer()]
    return _FORK_SERVERS[0]


def exited(code: int) -> RuntimeError:
    """What is raised for a process that died."""
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return RuntimeError(f"a worker process exited unexpectedly ({how})")


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

    def send(self, what: object) -> None:
        """Give it the job or the next element; if it is dead, `receive` says so."""
        with suppress(OSError):
            self.connection.send(what)

    def receive(self) -> Any:
        """What it says next. Raises RuntimeError if it failed or the process died."""
        try:
            said = self.connection.recv()
        except (EOFError, OSError) as error:
            self._has_ended = True
            raise exited(self._fork_server.wait(self.pid)) from error
        if isinstance(said, Failure):
            raise RuntimeError(said.reason) from RuntimeError(f"in a worker:\n{said.stack}")
        return said
