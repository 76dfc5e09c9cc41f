"""The options of a job that change no shard."""

from dataclasses import dataclass
from functools import partial

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import seconds
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.job.tasks import Task
from clozeline.pipeline.job.workers import usable_cores
from clozeline.pipeline.sources.formats import BLOCK_BYTES

_job = partial(option, group="Job")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How the work is done; none of this changes a shard.

    >>> JobOptions(workers=1).block_bytes
    16777216
    """

    workers: int = _job(0, "Worker processes on this machine; 0 starts one per core.")
    task: str | None = _job(
        None,
        "Do one of N shares of the job, 0/N to N-1/N, in one process; `slurm` takes both numbers "
        "from the job array.",
    )
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
    allow_truncated: bool = option(
        False,
        "Use what can be read of sources that end early, instead of failing the job.",
        group="Text",
    )
    overwrite: bool = option(
        False,
        "Replace a finished data set that has another config or other sources, once all text is "
        "read and gives an example; with --task, at once.",
        group="Output",
    )

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers is {self.workers}; give 0 (all cores) or more.")
        if self.block_bytes < 1:
            raise ValueError(f"block_bytes is {self.block_bytes}; give at least 1.")
        seconds(self.wait, name="wait", zero=True)
        if self.wait != JobOptions.wait and self.task is None:
            raise ValueError(
                f"wait is {self.wait}, and only a task waits; add --task, or leave it out."
            )
        if self.task is not None and Task.parse(self.task) and self.workers > 1:
            raise ValueError(
                f"a task is one process, and workers is {self.workers}; use more tasks."
            )
        if self.overwrite and not self.has_cache:
            raise ValueError(
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
