"""The progress of a job in workers, job.log and job.json.

What workers and Beam write goes to job.log, and the terminal shows the progress.

    tokenizing:  54%|###  | 135M/250M [00:14<00:12, 9.51MB/s, peak memory 0.81 GB]
      building:   0%|     | 0/5 [00:00<?, ?shard/s]
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
from clozeline.pipeline.common.counts import tree_memory
from clozeline.pipeline.common.errors import StoreError
from clozeline.pipeline.common.paths import AnyPath, is_local, names_in, naming_store
from clozeline.pipeline.common.progress_bar import ProgressBar
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import has_scheme
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.stages import BUILD, TOKENIZE

POLL_SECONDS = 1.0


class Progress:
    """What workers of this machine have done: a bar for a stage, and the peak of memory."""

    def __init__(self, context: JobContext) -> None:
        names: set[str] = set()
        # If a store fails now, leave it to the workers, which retry longer and report it.
        with suppress(StoreError, OSError), naming_store(context.cache_dir):
            names = names_in(context.cache_dir)
        files = ({file.name for file in context.files_of(block)} for block in context.blocks)
        #: Bytes of text of each block; of those that are tokenized already, 0.
        self.sizes = [
            0 if own <= names else block.text_bytes
            for own, block in zip(files, context.blocks, strict=True)
        ]
        self.text_bytes = sum(block.text_bytes for block in context.blocks)
        self.peak_memory = 0  #: bytes, of all processes on this machine
        self.terminal: TextIO | None = None  #: standard error, unless another is given
        self._bar: ProgressBar | None = None
        self._steps: list[int] = []  # of the bar, by element
        self._next_poll = 0.0

    def begin(self, label: str, count: int) -> None:
        """Show the bar of a stage of so many elements, if it has one."""
        self.end()
        self._steps = self.sizes if label == TOKENIZE.label else [1] * count
        settings = {"file": self.terminal, "mininterval": POLL_SECONDS, "dynamic_ncols": True}
        if label == TOKENIZE.label:  # the speed is that of text that is read now
            settings |= {"initial": self.text_bytes - sum(self.sizes), "total": self.text_bytes}
            self._bar = ProgressBar(desc="tokenizing", unit="B", unit_scale=True, **settings)
        elif label == BUILD.label:
            self._bar = ProgressBar(desc="  building", total=count, unit="shard", **settings)
        self._show_memory()

    def add(self, number: int) -> None:
        """An element of the stage is done."""
        if self._bar is not None:
            self._bar.update(self._steps[number])

    def poll(self) -> None:
        """Measure the memory, at most once a second."""
        if time.monotonic() >= self._next_poll:
            with suppress(OSError):  # of too many open files
                self.peak_memory = max(self.peak_memory, tree_memory())
            self._next_poll = time.monotonic() + POLL_SECONDS
            self._show_memory()

    def _show_memory(self) -> None:
        if self._bar is not None:
            words = f"peak memory {self.peak_memory / 1e9:.2f} GB"
            self._bar.set_postfix_str(words, refresh=False)

    def end(self) -> None:
        """Draw the bar for the last time."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None


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
    progress.poll()  # a runner of Beam did not
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    elapsed = time.time() - started
    return {
        "beam_args": beam_args,
        "seconds": round(elapsed, 2),
        "cpu_seconds": round(worker_seconds + sum(u.ru_utime + u.ru_stime for u in usage), 2),
        "megabytes_per_second": round(sum(progress.sizes) / elapsed / 1e6, 3),
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
