"""`make engines-scale`: much text on Flink, with a task manager killed half-way, and locally.

    python -m tests.faults.engine_scale --cache work/engines --only flink --size 20GB

It says first which disk space it needs. Both jobs must write the same bytes. The memory of each
kind of process over the time goes to `memory.csv` in the cache, a line every few seconds, and is
drawn as `memory.png`.
"""

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from matplotlib.figure import Figure

from clozeline.pipeline.commandline.beam_worker import SDK_WORKER
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.units import byte_size, size_in_words
from tests.faults.engine_kills import kill_first
from tests.faults.engines import (
    Cluster,
    Trials,
    Usage,
    blocks_done,
    digests,
    isolated,
    measured,
    repeated,
)
from tests.support.waiting import wait_until

DISK_SHARE: Final = 3.0  #: bytes for each byte of text: shards and a token cache, of both jobs
BLOCKS: Final = 200
SECONDS: Final = 48 * 3600.0  #: until a job must have ended
BETWEEN_LINES: Final = 5.0  #: seconds
CURVE: Final = "memory.csv"
#: The kind of a process, by a part of its command line; anything else is the command itself.
KINDS: Final = {
    "TaskManagerRunner": "task managers",
    "StandaloneSession": "job manager",
    " -jar ": "job server",
    SDK_WORKER: "Python workers",
    "": "command",
}


def check_disk(folder: Path, size: int) -> None:
    """Say what is needed. Raises InputError if that is not free."""
    needed, free = int(size * DISK_SHARE), shutil.disk_usage(folder).free
    print(f"needs {size_in_words(needed)} in {folder}; {size_in_words(free)} are free", flush=True)
    if free < needed:
        raise InputError(f"{folder} has too little space; give another --cache or --size.")


def memory_by_kind() -> Counter[str]:
    """The bytes of all processes that this one has started."""
    found: Counter[str] = Counter()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            line = " ".join(one.cmdline())
            kind = next(kind for part, kind in KINDS.items() if part in line)
            found[kind] += one.memory_full_info().pss
    return found


@contextmanager
def curve(file: Path) -> Iterator[None]:
    """Write the memory of each kind, in MB, while the block runs."""
    started = time.monotonic()
    with file.open("w", buffering=1) as lines:

        def write_line() -> None:
            found = memory_by_kind()
            values = [f"{found[kind] / 1e6:.0f}" for kind in KINDS.values()]
            print(f"{time.monotonic() - started:.0f}", *values, sep=",", file=lines)

        print("seconds", *KINDS.values(), sep=",", file=lines)
        with repeated(write_line, seconds=BETWEEN_LINES):
            yield


def draw(file: Path) -> None:
    """Draw the memory over the time, stacked, as a PNG beside this CSV file of `curve`."""
    seconds, *kinds = np.loadtxt(file, delimiter=",", skiprows=1).T
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(seconds / 60, [kind / 1e3 for kind in kinds], labels=KINDS.values())
    axes.set(xlabel="minutes", ylabel="GB")
    axes.margins(x=0)
    figure.legend(loc="outside upper left", ncols=len(kinds), frameon=False)
    figure.savefig(file.with_suffix(".png"), dpi=120, metadata={"Software": None})


def run_job(trials: Trials, name: str, *arguments: str, cluster: Cluster | None = None) -> Usage:
    """Run a job to its end; on a cluster a task manager is killed when half of the text is done."""
    out = trials.folder / name
    started = time.monotonic()
    with measured() as usage, trials.start(out, *arguments) as job:
        if cluster:
            wait_until(lambda: blocks_done(out) >= BLOCKS // 2, "half", seconds=SECONDS)
            kill_first("TaskManagerRunner")
            cluster.start(1)
        _, said = job.communicate(timeout=SECONDS)
    cpu, wall = sum(usage.cpu.values()), time.monotonic() - started
    print(f"{name:10}{wall:10.0f}{cpu:10.0f}{usage.peak / 1e9:10.2f}", flush=True)
    if job.returncode:
        sys.exit(said)
    return usage


def main() -> None:
    options, (engine, *_) = isolated("tests.faults.engine_scale")
    try:
        size = byte_size(options.size, "--size")
        check_disk(options.cache, size)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    # As many shards as a job of this size has by itself.
    text = (f"sample:articles?size={size}", f"--block-bytes={size // BLOCKS}")
    trials = Trials(options.cache, text)
    print(f"{'':10}{'wall s':>10}{'CPU s':>10}{'memory GB':>10}", flush=True)
    local = run_job(trials, "local", "--workers=2")
    folder = trials.folder / "cluster"
    with Cluster(engine, options.cache, folder) as cluster, curve(options.cache / CURVE):
        there = run_job(trials, engine.name, *trials.on(engine), cluster=cluster)
    draw(options.cache / CURVE)
    is_same = digests(trials.folder / engine.name) == digests(trials.folder / "local")
    ratio = sum(there.cpu.values()) / sum(local.cpu.values())
    print(f"{'the same' if is_same else 'OTHER'} bytes; CPU seconds {ratio:.2f} of the local job's")
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
