"""The process that imports Beam, once, and forks a worker for each request.

It is a new interpreter without threads of Python, since a fork of the process that runs the job
would copy threads, locks and connections, and `multiprocessing` would run the user's script in it.
This file imports nothing large: Beam's import takes longest, so it begins first.

    python -P -c "from clozeline.pipeline.job.workers import fork_workers; fork_workers()" 7
"""

import atexit
import os
import resource
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Final, NamedTuple

LIMITS: Final = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS)
PROGRAM: Final = "from clozeline.pipeline.job.workers import fork_workers; fork_workers()"


class Surroundings(NamedTuple):
    """What a worker takes from the process that runs the job, as they are when it starts."""

    folder: str
    environment: dict[str, str]
    import_path: list[str]
    limits: dict[int, tuple[int, int]]


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
    ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return RuntimeError(f"a worker process exited unexpectedly ({ending})")
