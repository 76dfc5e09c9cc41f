"""job.log and job.json: what workers and Beam write, and how the job went.

What they write goes to a file, and the terminal shows the progress.
"""

import logging
import os
import platform
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from clozeline.pipeline.common import errors
from clozeline.pipeline.common.paths import AnyPath, is_local
from clozeline.pipeline.job.progress import Progress
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import has_scheme
from clozeline.pipeline.steps.context import JobContext

LOG = "job.log"
#: Errors that a worker's traceback may name.
PASSED_ON = r"\b(InputError|CorruptDataError|StoreError|JobFailedError|UnfinishedError)"
JAVA_FRAME = re.compile(r"\s*(at .+\(.*\)|\.\.\. \d+ more)")


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


def measured(
    progress: Progress, beam_args: list[str], started: float, worker_seconds: float
) -> dict[str, Any]:
    """What the process that runs the job has measured."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    elapsed = time.time() - started
    read_bytes = progress.done_bytes - progress.kept_bytes
    return {
        "beam_args": beam_args,
        "seconds": round(elapsed, 2),
        "cpu_seconds": round(worker_seconds + sum(u.ru_utime + u.ru_stime for u in usage), 2),
        "megabytes_per_second": round(read_bytes / elapsed / 1e6, 3),
        "peak_memory_megabytes": progress.peak_memory // 1_000_000,
    }


def described(
    sources: Sequence[str], blocks: Sequence[Block], context: JobContext
) -> dict[str, Any]:
    """What is known of a job before it begins."""
    return {
        "sources": list(sources),
        "exclude": [_absolute(source) for source in context.config.exclude],
        "blocks": len(blocks),
        "shards": len(context.buckets),
        "text_bytes": sum(block.text_bytes for block in blocks),
        "host": platform.node(),
        "python": sys.version.split()[0],
    }


def _absolute(source: str) -> str:
    """The source as any folder may name it, for `clozeline verify`."""
    is_elsewhere = "://" in source or source.startswith("~") or has_scheme(source)
    return source if is_elsewhere else os.path.abspath(source)  # noqa: PTH100 (keeps a query)


def error_of_a_worker(error: BaseException) -> errors.ClozelineError | None:
    """Our own error, which a runner often passes on only as the text of a traceback."""
    text = "".join(traceback.format_exception(error))
    found = re.findall(PASSED_ON + r": (.*?)(?: \[while running|\n|\Z)", text)
    if not found:
        return None
    name, message = found[-1]  # a traceback has the causes first
    error_class: type[errors.ClozelineError] = getattr(errors, name)
    return error_class(message)


def last_line(text: str) -> str:
    """The last line that says what is wrong: with a letter, and not a frame of Java's stack."""
    lines = [line for line in text.splitlines() if any(map(str.isalpha, line))]
    lines = [line for line in lines if not JAVA_FRAME.fullmatch(line)] or lines
    return lines[-1].strip() if lines else ""
