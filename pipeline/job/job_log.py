"""job.log: what Beam and its workers write goes to a file, and the terminal shows the progress."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from clozeline.pipeline.common.paths import AnyPath, is_local

LOG = "job.log"


@contextmanager
def log_file(folder: AnyPath) -> Iterator[AnyPath]:
    """A local file for the log; copied into the folder at the end if that is in a store."""
    if is_local(folder):
        yield folder / LOG
        return
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch, LOG)
        try:
            yield local
        finally:
            with suppress(Exception):  # the store fails: the job's own error says so
                (folder / LOG).write_bytes(local.read_bytes())


@contextmanager
def logging_to(path: AnyPath) -> Iterator[TextIO]:
    """Send all logging and standard error to the file; yield the terminal.

    Worker processes write to the standard error they inherit, so the file descriptor is redirected,
    not only Python's logging.
    """
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w") as terminal, path.open("w") as log:
        handler = logging.StreamHandler(log)
        root = logging.getLogger()
        others, root.handlers = root.handlers, [handler]
        os.dup2(log.fileno(), 2)
        try:
            yield terminal
        finally:
            os.dup2(terminal.fileno(), 2)
            root.handlers = others
