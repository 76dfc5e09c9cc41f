"""What a person sees while a job runs: finished files are what is counted.

That works on every runner, also one whose workers are on other machines, and needs no metrics.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

from pipeline.sources import Block
from pipeline.steps import Workplace

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_LINES = 15.0  # where the output is a log and not a terminal


@contextmanager
def show_progress(blocks: Sequence[Block], place: Workplace, terminal: TextIO) -> Iterator[None]:
    """Two bars, of text read and of shards written, until the block ends."""
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(blocks, place, terminal, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _watch(
    blocks: Sequence[Block], place: Workplace, terminal: TextIO, stop: threading.Event
) -> None:
    interval = SECONDS_BETWEEN_LOOKS if terminal.isatty() else SECONDS_BETWEEN_LINES
    runs = {place.run_path(block): block.text_bytes for block in blocks}
    shards = [place.shard_path(bucket) for bucket in range(len(place.buckets))]
    with (
        _bar("tokenizing", sum(runs.values()), "B", interval, terminal) as tokenized,
        _bar("building shards", len(shards), "shard", interval, terminal) as built,
    ):
        done = False
        while not done:
            done = stop.wait(interval)
            tokenized.update(sum(size for run, size in runs.items() if run.exists()) - tokenized.n)
            built.update(sum(shard.exists() for shard in shards) - built.n)


def _bar(label: str, total: int, unit: str, interval: float, terminal: TextIO) -> tqdm:
    return tqdm(
        desc=f"{label:>15}",
        total=total,
        unit=unit,
        unit_scale=unit == "B",
        mininterval=interval,
        file=terminal,
    )
