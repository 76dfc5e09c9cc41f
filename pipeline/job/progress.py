"""The progress of a job by its finished files, job.log and job.json.

Files can be counted on every runner, even if its workers are on other machines. Memory is that of
this machine. What workers and Beam write goes to job.log, and the terminal shows the progress.

    tokenizing:  54%|###  | 135M/250M [00:14<00:12, 9.51MB/s, blocks 9/16, ...]
      building:   0%|     | 0/5 [00:14<?, ?shard/s]
"""

import logging
import os
import platform
import re
import resource
import sys
import tempfile
import threading
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

POLL_SECONDS = 1.0
#: Polls may take this share of the time: a store lists only a thousand files per request.
POLL_SHARE = 0.05


class Progress:
    """The finished blocks and shards of a job."""

    def __init__(self, blocks: Sequence[Block], context: JobContext) -> None:
        self.context = context
        #: Bytes of text of each block, by the names of its files.
        self.blocks = {
            frozenset(path.name for path in context.files_of(block)): block.text_bytes
            for block in blocks
        }
        self.shards = set(context.shard_names)
        self.done_blocks: set[frozenset[str]] = set()
        self.done_shards: set[str] = set()
        self.kept_bytes = 0  #: of text that an earlier process has read
        self.peak_memory = 0  #: bytes, of all processes on this machine

    @property
    def done_bytes(self) -> int:
        return sum(self.blocks[files] for files in self.done_blocks)

    def poll(self) -> float:
        """Count the finished files again; return the seconds it took."""
        started = time.monotonic()
        # If a store fails now, leave it to the workers, which retry longer and report it.
        with suppress(StoreError, OSError), naming_store(self.context.cache_dir):
            self.peak_memory = max(self.peak_memory, tree_memory())
            names = names_in(self.context.cache_dir)
            self.done_blocks = {files for files in self.blocks if files <= names}
            if len(self.done_blocks) == len(self.blocks):  # before, none of this job is built
                self.done_shards = self.shards & names_in(self.context.out_dir)
        return time.monotonic() - started

    def as_text(self) -> str:
        """What the bars do not show."""
        return (
            f"blocks {len(self.done_blocks)}/{len(self.blocks)}, "
            f"peak memory {self.peak_memory / 1e9:.2f} GB"
        )


@contextmanager
def show_progress(progress: Progress, terminal: TextIO) -> Iterator[None]:
    """Show two bars, text read and shards written, until the block ends."""
    stop = threading.Event()
    progress.poll()
    progress.kept_bytes = read = progress.done_bytes  # not part of this process's speed
    total, built = sum(progress.blocks.values()), len(progress.done_shards)
    look: dict[str, Any] = {"file": terminal, "mininterval": POLL_SECONDS, "dynamic_ncols": True}
    shards = {"total": len(progress.shards), "initial": built, "unit": "shard", **look}
    with (
        ProgressBar(
            desc="tokenizing", total=total, initial=read, unit="B", unit_scale=True, **look
        ) as text,
        ProgressBar(desc="  building", **shards) as building,
    ):
        thread = threading.Thread(
            target=_follow, args=(progress, text, building, stop), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _follow(progress: Progress, text: Any, building: Any, stop: threading.Event) -> None:
    """Update the bars until the job ends, and once after that."""
    done, took = False, 0.0
    while not done:
        done = stop.wait(max(POLL_SECONDS, took / POLL_SHARE))
        took = progress.poll()
        text.set_postfix_str(progress.as_text(), refresh=False)
        text.update(progress.done_bytes - text.n)
        building.update(len(progress.done_shards) - building.n)


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


def costs_of_job(
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


def facts_of_job(
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
    errors_in_text = re.findall(PASSED_ON + r": (.*?)(?: \[while running|\n|\Z)", text)
    if not errors_in_text:
        return None
    name, message = errors_in_text[-1]  # a traceback has the causes first
    error_class: type[errors.ClozelineError] = getattr(errors, name)
    return error_class(message)


def last_line(text: str) -> str:
    """The last line that says what is wrong: with a letter, and not a frame of Java's stack."""
    lines = [line for line in text.splitlines() if any(map(str.isalpha, line))]
    lines = [line for line in lines if not JAVA_FRAME.fullmatch(line)] or lines
    return lines[-1].strip() if lines else ""
