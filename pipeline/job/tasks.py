"""`clozeline shards --task I/N`: a share of a job, without a coordinator.

    12 blocks, --task 1/3    tokenizes blocks 1, 4, 7, 10; waits for the other tasks' blocks;
                             builds shards 1, 4, ...; waits; writes the manifest

A task runs the graph on its share, and sees by the names of files what the other tasks have done.
Any number of tasks give the same bytes, in any order, some of them twice.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from clozeline.pipeline.common.errors import UnfinishedError, first_names
from clozeline.pipeline.common.paths import AnyPath, names_in
from clozeline.pipeline.job.options import Task
from clozeline.pipeline.job.out_folder import finished_dataset
from clozeline.pipeline.steps.stages import Stage
from clozeline.pipeline.steps.steps import Steps

POLL_SECONDS: Final = 2.0
POLL_SHARE: Final = 0.05  #: most of its time that a waiting task spends listing files


class Share(Protocol):
    """What one process does of each stage; plain values, since Beam copies it."""

    is_of_task: ClassVar[bool]

    def of(self, stage: Stage, steps: Steps) -> Iterator[Any]:
        """The elements, one after the other is done; ends when all processes have done theirs."""


class Outcome(NamedTuple):
    """What a worker says at its end."""

    counters: Counter[str]  #: Beam's
    is_last: bool  #: whether it has finished the data set; else another task had
    worker_seconds: float = 0.0  #: CPU time of workers


@dataclass(frozen=True)
class TaskShare:
    """The share of a task; `of` waits for those of the others by the names of their files."""

    task: Task
    wait: float  #: seconds
    is_of_task: ClassVar = True

    def of(self, stage: Stage, steps: Steps) -> Iterator[Any]:
        """Raises UnfinishedError when other tasks have finished nothing for `wait` seconds."""
        every = stage.elements(steps.context)
        owners = self.task.owners([stage.size(element) for element in every])
        todo = [n for n, owner in enumerate(owners) if owner == self.task.index]
        files: list[list[AnyPath]] = []
        missing, since = None, time.monotonic()
        while missing != []:
            for number in todo:
                yield every[number]
            files = files or [stage.files(steps, element) for element in every]
            started, before = time.monotonic(), missing
            missing = _without_files(files)
            done = f"{len(files) - len(missing)} of {len(files)} {stage.done}"
            if missing != before:  # what others finished meanwhile counts, too
                since = started
            if missing and (started - since >= self.wait or finished_dataset(steps.context)):
                others = sorted({owners[number] for number in missing})
                names = first_names([f"{index}/{self.task.count}" for index in others])
                raise UnfinishedError(
                    f"{done}; the others are those of task {names}. "
                    "Run what is missing, and this task again."
                )
            if missing != before:
                print(f"task {self.task}: {done}", file=sys.stderr, flush=True)
            todo = [n for n in missing if owners[n] == self.task.index]
            if missing and not todo:
                time.sleep(max(POLL_SECONDS, (time.monotonic() - started) / POLL_SHARE))


def _without_files(files: Sequence[Sequence[AnyPath]]) -> list[int]:
    """The numbers of the items that miss a file."""
    folders = {path.parent for paths in files for path in paths}
    existing = {folder: names_in(folder) for folder in folders}
    return [
        number
        for number, paths in enumerate(files)
        if not all(path.name in existing[path.parent] for path in paths)
    ]
