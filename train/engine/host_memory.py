"""How much memory Linux can still give: what the machine has free, and what its container may take.

    /proc/meminfo                  MemAvailable            20 GiB
    /sys/fs/cgroup/job/memory.max  8 GiB, 3 GiB of it used
    ->  5 GiB

Docker, Kubernetes and Slurm limit memory by control groups, one within another: of version 2, or of
version 1 with names of its own. Pages of files count as used there, but are given up when needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Files:
    """Where a version of control groups keeps what a group may use and what it uses."""

    mount: str
    limit: str
    used: str
    pages: tuple[str, ...]  # of files, in memory.stat


V1 = _Files(
    mount="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    pages=("total_inactive_file", "total_active_file"),
)
V2 = _Files(
    mount="sys/fs/cgroup",
    limit="memory.max",
    used="memory.current",
    pages=("inactive_file", "active_file"),
)


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process could still be given at most; None where the system is not Linux."""
    try:
        machine = _number_of((root / "proc/meminfo").read_text(), "MemAvailable:") << 10
    except (OSError, ValueError):
        return None
    return min([machine, *_free_in_groups(root)])


def _free_in_groups(root: Path) -> Iterator[int]:
    """What each group around this process may still take, of those with a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # 0::/system.slice/job, or 4:memory:/job
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = V1 if controllers else V2
        mount = root / files.mount
        group = mount / name.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                yield from _free_in(folder, files)


def _free_in(group: Path, files: _Files) -> Iterator[int]:
    """Nothing where the group has no limit or, seen from a container, is not there."""
    try:
        limit = int((group / files.limit).read_text())
        used = int((group / files.used).read_text())
        stat = (group / "memory.stat").read_text()
        pages = sum(_number_of(stat, name) for name in files.pages)
    except (OSError, ValueError):  # "max", no limit
        return
    yield max(limit - used + pages, 0)


def _number_of(text: str, name: str) -> int:
    """The number after a name at the start of a line. Raises ValueError where there is none."""
    for line in text.splitlines():
        if (words := line.split())[:1] == [name]:
            return int(words[1])
    raise ValueError(f"no {name}")
