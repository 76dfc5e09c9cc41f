"""What several benchmarks measure, CPU time and peak memory, and the real text that they take."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import TypeVar

import pyarrow.parquet as pq

from tests.support.small_jobs import clozeline_ok

Result = TypeVar("Result")

DATA = os.environ.get("CLOZELINE_DATA")
if DATA:
    os.environ["NLTK_DATA"] = f"{DATA}/nltk_data"  # read when nltk is imported
WIKIPEDIA = f"{DATA}/wikipedia/train-*.parquet"
BERT_VOCABULARY = Path(f"{DATA}/vocab/bert-base-uncased-vocab.txt")


def wikipedia() -> Iterator[str]:
    """The articles in CLOZELINE_DATA."""
    assert DATA, "CLOZELINE_DATA is not set"
    for path in sorted(Path(f"{DATA}/wikipedia").glob("*.parquet")):
        yield from pq.read_table(path, columns=["text"])["text"].to_pylist()


def learned_tokenizer(folder: Path) -> Path:
    """A tokenizer with BERT's vocabulary where CLOZELINE_DATA is set, else with a learned one."""
    vocabulary = ["--vocab", BERT_VOCABULARY] if DATA else ["--vocab-size", 8192]
    clozeline_ok("tokenizer", "sample:articles?size=20MB&seed=1", "--out", folder, *vocabulary)
    return folder


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result, and the CPU seconds of all threads."""
    start = process_time()
    result = work()
    return result, process_time() - start


def cpu_of_children() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_above_now(work: Callable[[], object]) -> int:
    """Bytes of this process at its peak in the work, less those before (Linux).

    `getrusage` would start from the peak of the parent process.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now the present size
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
