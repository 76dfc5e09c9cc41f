"""How the work is done: the options, none of which changes a shard.

The command line needs them before anything else is imported.
"""

import heapq
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import checks_keywords, seconds
from clozeline.pipeline.common.errors import OptionError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.sources.block import BLOCK_BYTES

_job = partial(option, group="Job")


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How the work is done; none of this changes a shard.

    >>> JobOptions(workers=1).block_bytes
    16777216
    """

    workers: int = _job(0, "Worker processes on this machine; 0 starts one per core.")
    task: str | None = _job(None, "Do one of N shares of the job, 0/N to N-1/N, in one process.")
    wait: str = _job(
        "10m",
        "With --task: exit with code 75 when other tasks have finished nothing for this long.",
    )
    block_bytes: int = _job(BLOCK_BYTES, "Bytes of text per block, the unit of work and retry.")
    token_cache: AnyPath | None = option(
        None,
        "Keep tokenized blocks here for other data sets; defaults to OUT/.cache, removed on "
        "success. With an engine, `none` needs no shared folder but OUT.",
        group="Job",
    )
    overwrite: bool = option(
        False,
        "Replace a finished data set of another config or other sources; it stays until all new "
        "text is read.",
        group="Output",
    )

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise OptionError(f"workers is {self.workers}; give 0 (all cores) or more.")
        if self.block_bytes < 1:
            raise OptionError(f"block_bytes is {self.block_bytes}; give at least 1.")
        seconds(self.wait, name="wait", zero=True)
        if self.wait != JobOptions.wait and self.task is None:
            raise OptionError(
                f"wait is {self.wait}, and only a task waits; add --task, or leave it out."
            )
        if self.task is not None and Task.parse(self.task) and self.workers > 1:
            raise OptionError(
                f"a task is one process, and workers is {self.workers}; use more tasks."
            )
        if self.overwrite and self.task is not None:
            raise OptionError(
                "--overwrite replaces the data set of a whole job; tasks build what is missing: "
                "remove damaged files, or a data set that they are to replace."
            )
        if self.overwrite and not self.has_cache:
            raise OptionError(
                "--overwrite needs a token cache; leave out --token-cache none, or remove the data "
                "set that is to be replaced."
            )

    @property
    def has_cache(self) -> bool:
        """Whether tokenized blocks are kept in files while the job runs."""
        return str(self.token_cache) != "none"

    @property
    def num_workers(self) -> int:
        """`workers`, or one per core that this process may use."""
        return self.workers or usable_cores()


@dataclass(frozen=True)
class Task:
    """One of `count` tasks, counted from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """ "2/4" -> (2, 4). Raises ValueError for anything else."""
        if not re.fullmatch(r"\d+/\d+", text, re.ASCII):
            raise OptionError(f"task is {text!r}; give I/N, from 0/N to N-1/N.")
        index, count = map(int, text.split("/"))
        if not index < count:
            last = f", {count - 1}/{count} is the last" if count else ""
            raise OptionError(f"task is {text}; tasks are counted from 0{last}.")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def owners(self, sizes: Sequence[int]) -> list[int]:
        """Which task does each element: the largest first, to the task that has least to do.

        A single element is every task's.

            sizes 5, 9, 4, 4, of 2 tasks  ->  1, 0, 1, 0
        """
        if len(sizes) == 1:
            return [self.index]
        loads = [(0, index) for index in range(self.count)]
        owners = [0] * len(sizes)
        for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
            load, owners[number] = heapq.heappop(loads)
            heapq.heappush(loads, (load + max(1, sizes[number]), owners[number]))
        return owners


def usable_cores() -> int:
    """How many cores this process may run on: on Linux its CPU affinity, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_drawing(beam_args: Sequence[str]) -> bool:
    """Whether the runner only draws the graph."""
    return any(arg.rpartition("=")[2].lower().endswith("renderrunner") for arg in beam_args)
