"""Memory and CPU seconds of a job of very many blocks and shards.

    python tests/benchmarks/many_slices.py [BLOCKSxSHARDS ...]      (default: 250x125 1000x500)

Each block has a short document for each shard, so there are BLOCKS x SHARDS slices. They are made
up and not tokenized: their token cache files are written first, as by a job that was stopped, and
then the job runs with two workers, merges the files and builds the shards. The peak is that
of all processes together.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.job.progress import Progress, show_progress
from clozeline.pipeline.job.workers import run_in_workers
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.token_cache import write_cache_file
from clozeline.pipeline.tokenization.documents import TokenizedDocuments
from tests.benchmarks.measuring import cpu_of_children
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import job_context

WORKERS = 2
TOKENS = 4  # of a document
COLUMNS = (
    *("blocks x shards", "slices", "written CPU s", "job CPU s", "us/slice", "wall s"),
    "peak GB",
)


def main() -> None:
    arguments = sys.argv[1:] or ["250x125", "1000x500"]
    if arguments[0] == "--one":
        return measure(*map(int, arguments[1].split("x")))
    print("".join(f"{name:>15}" for name in COLUMNS), flush=True)
    for size in arguments:
        line = [sys.executable, __file__, "--one", size]
        done = subprocess.run(line, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit(done.stderr.decode())
    return None


def measure(num_blocks: int, num_shards: int) -> None:
    """A job from token cache files to the manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        blocks, context = job_of(Path(scratch), num_blocks, num_shards)
        for block in blocks:
            write_block(block, context)
        written, started = cpu_seconds(), time.monotonic()
        progress = Progress(blocks, context)
        with show_progress(progress, sys.stderr):
            outcome = run_in_workers(context, workers=WORKERS)
        # Workers are children of the process that forks them.
        used = cpu_seconds() - written + outcome.worker_seconds
        wall = time.monotonic() - started
        assert read_manifest(context.out_dir).counts["documents"] == num_blocks * num_shards
    slices = num_blocks * num_shards
    print(
        f"{f'{num_blocks}x{num_shards}':>15}{slices:>15,}{written:15.1f}{used:15.1f}"
        f"{(written + used) / slices * 1e6:15.1f}{wall:15.0f}{progress.peak_memory / 1e9:15.2f}",
        flush=True,
    )


def cpu_seconds() -> float:
    """CPU seconds of this process and its children that have ended."""
    return time.process_time() + cpu_of_children()


def job_of(folder: Path, num_blocks: int, num_shards: int) -> tuple[list[Block], JobContext]:
    """A job whose sources do not exist, and its folders."""
    config = DataConfig(num_shards=num_shards, validation=0.0, pairs="packed", max_seq_length=128)
    context = job_context(folder, config, small_tokenizer(PUNKT))
    blocks = [
        Block(path=str(i), format="text", stop=1, version="", index=i) for i in range(num_blocks)
    ]
    return blocks, context.reading(blocks)


def write_block(block: Block, context: JobContext) -> None:
    """A token cache file with a document for each shard."""
    shards = len(context.buckets)
    width = 2**64 // shards
    low = np.arange(shards, dtype=np.uint64) * np.uint64(width) + np.uint64(
        width // 2 + block.index
    )
    rows = np.arange(shards + 1)
    documents = TokenizedDocuments(
        high=np.full(shards, block.index, np.uint64),
        low=low,
        sentence_lengths=Ragged(np.full(shards, TOKENS), rows),
        paragraph_lengths=Ragged(np.ones(shards, np.int64), rows),
        input_ids=Ragged(np.resize(np.arange(5, 5 + TOKENS), shards * TOKENS), rows * TOKENS),
    )
    counts = Counts()
    counts.read.update(documents=shards)
    write_cache_file(
        context.cache_path(block),
        [(documents, counts)],
        buckets=context.buckets,
        vocab_size=context.vocab_size,
    )


if __name__ == "__main__":
    main()
