"""The progress of a job, by its finished files.

This works on every runner, even if its workers are on other machines, and needs no Beam metrics.
Memory is that of this machine.

    tokenizing:  54%|###  | 135M/250M [00:14<00:12, 9.51MB/s, blocks 9/16, ...]
      building:   0%|     | 0/5 [00:14<?, ?shard/s]
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from clozeline.pipeline.common.errors import StoreError
from clozeline.pipeline.common.memory import tree_memory
from clozeline.pipeline.common.paths import names_in
from clozeline.pipeline.common.progress_bar import ProgressBar, in_command
from clozeline.pipeline.common.store import naming_store
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.steps.context import JobContext

POLL_SECONDS = 1.0
#: Polls may take this share of the time: a store lists only a thousand files per request.
POLL_SHARE = 0.05


class Progress:
    """The finished blocks and shards of a job."""

    def __init__(self, blocks: Sequence[Block], context: JobContext) -> None:
        self.context = context
        #: Bytes of text of each block, by the name of its cache file.
        self.blocks = {context.cache_path(block).name: block.text_bytes for block in blocks}
        self.files = {
            name: {file.name for file in context.files_at(context.cache_dir / name)}
            for name in self.blocks
        }
        self.shards = {context.shard_path(n).name for n in range(len(context.buckets))}
        self.done_blocks: set[str] = set()
        self.done_shards: set[str] = set()
        self.kept_bytes = 0  #: of text that an earlier process has read
        self.peak_memory = 0  #: bytes, of all processes on this machine

    @property
    def done_bytes(self) -> int:
        return sum(self.blocks[name] for name in self.done_blocks)

    def poll(self) -> float:
        """Count the finished files again; return the seconds it took."""
        started = time.monotonic()
        # If a store fails now, leave it to the workers, which retry longer and report it.
        with suppress(StoreError, OSError), naming_store(self.context.cache_dir):
            self.peak_memory = max(self.peak_memory, tree_memory())
            names = names_in(self.context.cache_dir)
            self.done_blocks = {name for name, files in self.files.items() if files <= names}
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
    progress.kept_bytes = progress.done_bytes  # not part of this process's speed
    shared = {"file": terminal, "disable": not in_command()}  # another thread has no command
    thread = threading.Thread(target=_update_bars, args=(progress, shared, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _update_bars(progress: Progress, shared: dict[str, Any], stop: threading.Event) -> None:
    shared |= {"mininterval": POLL_SECONDS, "dynamic_ncols": True}
    with (
        ProgressBar(
            desc="tokenizing",
            total=sum(progress.blocks.values()),
            initial=progress.kept_bytes,
            unit="B",
            unit_scale=True,
            **shared,
        ) as text,
        ProgressBar(
            desc="  building",
            total=len(progress.shards),
            initial=len(progress.done_shards),
            unit="shard",
            **shared,
        ) as built,
    ):
        done, took = False, 0.0
        while not done:
            done = stop.wait(max(POLL_SECONDS, took / POLL_SHARE))
            took = progress.poll()
            text.set_postfix_str(progress.as_text(), refresh=False)
            text.update(progress.done_bytes - text.n)
            built.update(len(progress.done_shards) - built.n)
