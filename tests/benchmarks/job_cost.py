"""Seconds, CPU seconds and peak memory of `clozeline shards`, for several sizes of text.

    python tests/benchmarks/job_cost.py [SIZE ...] [-- SHARDS OPTIONS]      (250MB 1GB 4GB)
    python tests/benchmarks/job_cost.py -- --deduplicate near
    python tests/benchmarks/job_cost.py --other CHECKOUT [--rounds 3] [SIZE ...]

Articles of `sample:`, and 250 MB of Wikipedia with BERT's vocabulary where CLOZELINE_DATA is set;
two workers. With OTHER a few lines of text, which is start-up alone, come first, each job is also
done with one worker, and the two checkouts take turns: a row has the medians of all rounds, and the
shards must have the same bytes. CPU seconds are those of the command and its workers; the peak is
the sum of the proportional set sizes of all their processes, by the job's report.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from clozeline.pipeline.sources.formats import list_blocks
from tests.benchmarks.measuring import DATA, WIKIPEDIA, cpu_of_children, learned_tokenizer
from tests.support.small_jobs import COMMAND, ROOT, shard_digests

LINES = "A first line of text. It has two sentences.\n\nAnother document. It is short, too.\n" * 3


class Cost(NamedTuple):
    """What a job took."""

    wall: float
    cpu: float
    gigabytes: float


def sources_of(sizes: list[str], lines: Path | None) -> list[str]:
    """The sources, the file of a few lines first."""
    default = ["20MB"] if lines else ["250MB", "1GB", "4GB"]
    found = [f"sample:articles?size={size}" for size in sizes or default]
    if lines:
        lines.write_text(LINES)
        found = [str(lines), *(found if sizes or not DATA else [])]
    return found + [WIKIPEDIA] * bool(DATA)


def cost(checkout: Path, out: Path, *words: object) -> tuple[Cost, dict[str, str]]:
    """Run a job; return what it took and the digests of its shards."""
    line = [*COMMAND, "shards", *map(str, words), "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    started, before = time.monotonic(), cpu_of_children()
    done = subprocess.run(line, cwd=checkout, env=environment, capture_output=True, text=True)
    wall, cpu = time.monotonic() - started, cpu_of_children() - before
    if done.returncode:
        sys.exit(done.stderr)
    megabytes = json.loads((out / "job.json").read_bytes())["peak_memory_megabytes"]
    return Cost(wall, cpu, megabytes / 1000), shard_digests(out)


def print_rows(source: str, checkouts: dict[str, Path], rounds: int, *words: object) -> None:
    """A row for each checkout."""
    megabytes = sum(block.text_bytes for block in list_blocks([source])) / 1e6
    costs: dict[str, list[Cost]] = {name: [] for name in checkouts}
    digests = []
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            with tempfile.TemporaryDirectory() as out:
                found, of_shards = cost(checkout, Path(out, "out"), source, *words)
            costs[name].append(found)
            digests.append(of_shards)
    assert all(one == digests[0] for one in digests), "other bytes"
    first = statistics.median(one.cpu for one in next(iter(costs.values())))
    for name, taken in costs.items():
        wall, cpu, peak = map(statistics.median, zip(*taken, strict=True))
        speed = f"{megabytes / wall:8.1f}{cpu / first:8.2f}"
        print(f"{source[-40:]:40}{words[-1]:>4} {name:6}", end="")
        print(f"{megabytes:7.0f}{wall:9.1f}{cpu:9.1f}{peak:9.2f}{speed}", flush=True)


def main() -> None:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", help="of sample text, such as 1GB")
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="of both checkouts in turns")
    options, extra = parser.parse_args(given[:cut]), given[cut + 1 :]
    checkouts = {"other": options.other.absolute()} if options.other else {}
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = learned_tokenizer(Path(scratch, "tokenizer"))
        lines = Path(scratch, "lines.txt") if options.other else None
        print(f"{'text':40} workers   {'MB':>7}{'wall s':>9}{'CPU s':>9}{'peak GB':>9}", end="")
        print(f"{'MB/s':>8}{'x CPU':>8}")
        for source in sources_of(options.sizes, lines):
            for workers in (1, 2) if options.other else (2,):
                few = ["--validation=0", "--num-shards=1"] if source == str(lines) else []
                words = ("--tokenizer", tokenizer, *few, *extra, "--workers", workers)
                rounds = options.rounds if options.other else 1
                print_rows(source, checkouts | {"this": ROOT}, rounds, *words)


if __name__ == "__main__":
    main()
