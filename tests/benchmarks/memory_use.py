"""Peak memory of `clozeline shards` for several sizes of text.

    python tests/benchmarks/memory_use.py [SIZE ...] [-- SHARDS OPTIONS]      (250MB 1GB 4GB)
    python tests/benchmarks/memory_use.py -- --deduplicate near

Articles of `sample:`, two workers, shards of equal size. `peak` is the sum of the proportional set
sizes of all processes of the job, sampled several times a second; `job` and `worker` are the
largest resident sets of its first process and of any other. Where CLOZELINE_DATA is set the
vocabulary is BERT's and 250 MB of Wikipedia are measured too; else it is learned from the sample.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from clozeline.pipeline.sources.formats import list_blocks
from tests.benchmarks.measuring import BERT_VOCABULARY, DATA, WIKIPEDIA, cpu_of_children
from tests.support.small_jobs import COMMAND, ROOT, clozeline_ok

SECONDS_BETWEEN = 0.2
WORKERS = 2


def main() -> None:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    sizes, extra = given[:cut] or ("250MB", "1GB", "4GB"), given[cut + 1 :]
    sources = [f"sample:articles?size={size}" for size in sizes]
    if DATA:
        sources.append(WIKIPEDIA)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch, "tokenizer")
        options = ["sample:articles?size=20MB&seed=1", "--out", tokenizer]
        vocabulary = ["--vocab", BERT_VOCABULARY] if DATA else ["--vocab-size", 8192]
        clozeline_ok("tokenizer", *options, *vocabulary)
        print(f"{'text':44}     MB  seconds   CPU s   MB/s  peak GB  ratio   job  worker")
        first = 0.0
        for number, source in enumerate(sources):
            megabytes = sum(block.text_bytes for block in list_blocks([source])) / 1e6
            out = Path(scratch, str(number))
            before = cpu_of_children()
            seconds, peaks = run_job(source, "--tokenizer", tokenizer, "--out", out, *extra)
            shutil.rmtree(out)
            cpu = cpu_of_children() - before
            peak, job, worker = (size / 1e9 for size in peaks)
            first = first or peak
            print(
                f"{source[-44:]:44}{megabytes:7.0f}{seconds:9.1f}{cpu:8.0f}"
                f"{megabytes / seconds:7.1f}{peak:9.2f}{peak / first:7.2f}{job:6.2f}{worker:8.2f}",
                flush=True,
            )


def run_job(*arguments: object) -> tuple[float, list[int]]:
    """Seconds and peak memory of one job, in bytes: of all processes, the first, any other."""
    line = [*COMMAND, "shards", *map(str, arguments), "--workers", str(WORKERS)]
    start, peaks = time.monotonic(), [0, 0, 0]
    with tempfile.TemporaryFile() as messages:
        job = subprocess.Popen(line, cwd=ROOT, stdout=messages, stderr=messages)
        while job.returncode is None:
            peaks = list(map(max, peaks, tree_memory(job.pid)))
            try:
                job.wait(SECONDS_BETWEEN)
            except subprocess.TimeoutExpired:
                continue
        messages.seek(0)
        assert job.returncode == 0, messages.read().decode()
    return time.monotonic() - start, peaks


def tree_memory(pid: int) -> tuple[int, int, int]:
    """Bytes of a process and its descendants, of it alone, and of the largest descendant.

    In the first, shared pages count once.
    """
    try:
        job = psutil.Process(pid)
        first, *others = (
            process.memory_full_info() for process in (job, *job.children(recursive=True))
        )
    except psutil.NoSuchProcess:  # it ended during the sample; the next one counts the others
        return 0, 0, 0
    total = sum(info.pss for info in (first, *others))
    return total, first.rss, max((info.rss for info in others), default=0)


if __name__ == "__main__":
    main()
