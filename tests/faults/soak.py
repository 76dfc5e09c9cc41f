"""What a long command uses while it runs: memory, files, threads and disk should stay flat.

    clozeline pretrain work/shards --out work/run --for 2h &
    python -m tests.faults.soak $! work/run [SECONDS BETWEEN SAMPLES]

Watches the process and all that it starts until it ends, then prints a line for each tenth of its
time: the medians of their memory (proportional set size), open files and threads, all summed over
the processes, and the size of the folder.
"""

import statistics
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

PARTS = 10


@dataclass(frozen=True)
class Sample:
    megabytes: float
    files: int
    threads: int
    disk: float  #: megabytes in the folder


def sample(process: psutil.Process, folder: Path) -> Sample:
    """What a process and its descendants use. Raises psutil.NoSuchProcess when it has ended."""
    memory = files = threads = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            memory += one.memory_full_info().pss
            files += one.num_fds()
            threads += one.num_threads()
        except psutil.Error:
            if one is process or not process.is_running():
                raise psutil.NoSuchProcess(process.pid) from None
    return Sample(memory / 1e6, files, threads, disk_use(folder) / 1e6)


def disk_use(folder: Path) -> int:
    """The bytes of all files below a folder; files that are removed meanwhile have none."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.lstat().st_size
        except FileNotFoundError:
            continue
    return found


def watch(process: psutil.Process, folder: Path, *, seconds: float) -> list[Sample]:
    """A sample every `seconds` until the process ends."""
    samples = []
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        try:
            samples.append(sample(process, folder))
        except psutil.NoSuchProcess:
            break
        time.sleep(seconds)
    return samples


def table(samples: list[Sample]) -> list[str]:
    """A line for each tenth of the samples, with the medians."""
    lines = [f"{'part':>6}{'memory MB':>11}{'files':>7}{'threads':>9}{'disk MB':>9}"]
    for part in range(PARTS):
        some = samples[len(samples) * part // PARTS : len(samples) * (part + 1) // PARTS]
        if some:
            values = [statistics.median(column) for column in zip(*map(astuple, some), strict=True)]
            memory, files, threads, disk = values
            lines.append(f"{part + 1:6}{memory:11,.0f}{files:7.0f}{threads:9.0f}{disk:9,.0f}")
    return lines


def main() -> None:
    if len(sys.argv) not in (3, 4) or not sys.argv[1].isdecimal():
        sys.exit(__doc__)
    if not psutil.pid_exists(int(sys.argv[1])):
        sys.exit(f"Error: there is no process {sys.argv[1]}")
    seconds = float(sys.argv[3]) if sys.argv[3:] else 10.0
    started = time.monotonic()
    samples = watch(psutil.Process(int(sys.argv[1])), Path(sys.argv[2]), seconds=seconds)
    print(f"{(time.monotonic() - started) / 60:.0f} minutes, {len(samples)} samples")
    print("\n".join(table(samples)))


if __name__ == "__main__":
    main()
