"""Worker processes on this machine, without Beam, whose import takes longer than a small job.

Each worker is asked for one item at a time, and the next phase begins when all items of this one
are done. It is a new interpreter: a fork would copy threads, locks and connections, and
`multiprocessing` would run the user's script in it.

    python -P -m clozeline.pipeline.job.local_workers 7      (the number of its connection)
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Self

from clozeline.pipeline.common.malloc import disable_malloc_trim
from clozeline.pipeline.job.context import JobContext
from clozeline.pipeline.job.phases import Phase, phases
from clozeline.pipeline.job.steps import Steps
from clozeline.pipeline.sources.block import Block


def usable_cores() -> int:
    """How many cores this process may run on: on Linux its CPU affinity, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_workers(
    phases: Sequence[Phase], context: JobContext, *, blocks: Sequence[Block], workers: int
) -> None:
    """Do the phases of these blocks in at most `workers` processes.

    Raises RuntimeError for what a step raises and for a worker that dies, once the items in work
    elsewhere are done.
    """
    most = max(len(phase.items) for phase in phases)
    with ExitStack() as stack:
        started = [stack.enter_context(Worker()) for _ in range(min(workers, most))]
        for worker in started:  # all are importing meanwhile
            worker.send((blocks, context))
        for number, phase in enumerate(phases):
            _run_phase(started, number, phase)


def _run_phase(workers: Sequence["Worker"], number: int, phase: Phase) -> None:
    idle, busy = list(workers), list[Worker]()
    todo = deque(range(len(phase.items)))
    failed: RuntimeError | None = None
    while busy or (todo and not failed):
        while todo and idle and not failed:
            worker = idle.pop()
            worker.send((number, todo.popleft()))
            busy.append(worker)
        ready = wait([worker.connection for worker in busy])
        for worker in [worker for worker in busy if worker.connection in ready]:
            busy.remove(worker)
            try:
                worker.receive()
                idle.append(worker)
            except RuntimeError as error:
                failed = failed or error
    if failed:
        raise failed


class Worker:
    """A process that does items, one at a time, and ends with the process that started it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(number)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self._process.kill()  # it is idle, unless Ctrl-C ends the job
        self._process.wait()

    def send(self, what: object) -> None:
        """Give it the job or the next item; if it is dead, `receive` says so."""
        with suppress(OSError):
            self.connection.send(what)

    def receive(self) -> None:
        """Wait until the item is done. Raises RuntimeError if it failed or the process died."""
        try:
            failure = self.connection.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"a worker process exited unexpectedly ({how})") from error
        if failure:
            reason, stack = failure
            raise RuntimeError(reason) from RuntimeError(f"in a worker process:\n{stack}")


def work(connection: Connection) -> None:
    """Do what is asked for until the connection closes, which ends the process."""
    disable_malloc_trim()
    blocks, context = connection.recv()
    asked: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, asked), daemon=True).start()
    steps, every = Steps(context), phases(blocks, context)
    while True:
        phase, item = asked.get()
        failure = None
        try:
            every[phase].do(steps, every[phase].items[item])
        except Exception as error:  # reported to the process that runs the job
            failure = str(error), traceback.format_exc()
        connection.send(failure)


def _receive(connection: Connection, asked: queue.SimpleQueue[tuple[int, int]]) -> None:
    with suppress(EOFError, OSError):
        while True:
            asked.put(connection.recv())
    os._exit(1)  # also from the middle of an item: the job is over


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and that its workers
    work(Connection(int(sys.argv[1])))
