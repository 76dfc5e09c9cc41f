"""`clozeline shards` of this checkout against that of another: CPU seconds, start-up, memory.

    python tests/benchmarks/graph_cost.py OTHER [--rounds 3] [--text FILES] [--only NAME]

OTHER is a checkout. The two take turns, and a row has the medians of all rounds and their ratio:
250 MB of Wikipedia where CLOZELINE_DATA is set, else 20 MB of `sample:`, with one worker and two; a
few lines of text, which is start-up alone; and FILES, of any size, with two workers. CPU seconds
are those of the command and its workers, memory that of all their processes, by the job's report.
Shards must have the same bytes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.measuring import BERT_VOCABULARY, DATA, WIKIPEDIA, cpu_of_children
from tests.support.small_jobs import COMMAND, ROOT, clozeline_ok, shard_digests

LINES = "A first line of text. It has two sentences.\n\nAnother document. It is short, too.\n" * 3


class Row(NamedTuple):
    """A job that both checkouts do."""

    name: str
    source: str
    workers: int


class Cost(NamedTuple):
    """What it took."""

    wall: float
    cpu: float
    megabytes: float


def rows(scratch: Path, text: str | None) -> Iterator[Row]:
    (scratch / "lines.txt").write_text(LINES)
    source = WIKIPEDIA if DATA else "sample:articles?size=20MB"
    for workers in (1, 2):
        yield Row(f"start-up, {workers}", str(scratch / "lines.txt"), workers)
    for workers in (1, 2):
        yield Row(f"{'Wikipedia' if DATA else 'sample'}, {workers}", source, workers)
    if text:
        yield Row("text, 2", text, 2)


def cost(checkout: Path, row: Row, tokenizer: Path, out: Path) -> tuple[Cost, dict[str, str]]:
    """Run a job; return what it took and the digests of its shards."""
    options = ["--validation=0", "--num-shards=1"] if row.name.startswith("start-up") else []
    words = ["shards", row.source, "--tokenizer", tokenizer, "--out", out, *options]
    line = [*COMMAND, *map(str, words), "--workers", str(row.workers)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    started, before = time.monotonic(), cpu_of_children()
    done = subprocess.run(line, cwd=checkout, env=environment, capture_output=True, text=True)
    wall, cpu = time.monotonic() - started, cpu_of_children() - before
    if done.returncode:
        sys.exit(done.stderr)
    megabytes = json.loads((out / "job.json").read_bytes())["peak_memory_megabytes"]
    digests = shard_digests(out)
    shutil.rmtree(out)
    return Cost(wall, cpu, megabytes), digests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", help="files of more text, for two workers")
    parser.add_argument("--only", default="", help="rows whose name has this")
    options = parser.parse_args()
    checkouts = (options.other.absolute(), ROOT)
    print(
        f"{'job, workers':16}{'':8}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}{'x CPU':>8}{'x MB':>8}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer, out = Path(scratch, "tokenizer"), Path(scratch, "out")
        vocabulary = ["--vocab", BERT_VOCABULARY] if DATA else ["--vocab-size", 8192]
        clozeline_ok(
            "tokenizer", "sample:articles?size=20MB&seed=1", "--out", tokenizer, *vocabulary
        )
        for row in rows(Path(scratch), options.text):
            if options.only not in row.name:
                continue
            taken: dict[Path, list[Cost]] = {checkout: [] for checkout in checkouts}
            digests = []
            for _ in range(options.rounds):
                for checkout in checkouts:
                    found, of_shards = cost(checkout, row, tokenizer, out)
                    taken[checkout].append(found)
                    digests.append(of_shards)
            assert all(one == digests[0] for one in digests), "other bytes"
            old, new = (
                Cost(*map(statistics.median, zip(*taken[c], strict=True))) for c in checkouts
            )
            for name, one in (("other", old), ("this", new)):
                ratios = f"{one.cpu / old.cpu:8.2f}{one.megabytes / max(old.megabytes, 1):8.2f}"
                print(
                    f"{row.name:16}{name:8}{one.wall:9.2f}{one.cpu:9.2f}{one.megabytes:9.0f}{ratios}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
