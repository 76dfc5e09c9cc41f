"""How the work is done: the options, and what runs the graph: workers or a runner of Beam."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import seconds
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.job.job_log import LOG, last_line, logging_to
from clozeline.pipeline.job.tasks import Outcome, Share, Task
from clozeline.pipeline.job.workers import run_in_workers, usable_cores
from clozeline.pipeline.sources.formats import BLOCK_BYTES
from clozeline.pipeline.steps.context import JobContext

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
        "read and gives an example.",
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
        if self.overwrite and self.task is not None:
            raise ValueError(
                "--overwrite replaces the data set of a whole job; tasks build what is missing: "
                "remove damaged files, or a data set that they are to replace."
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


#: Runs the graph; returns when it is done.
RunGraph = Callable[[JobContext], Outcome]


def is_drawing(beam_args: Sequence[str]) -> bool:
    """Whether the runner only draws the graph."""
    return any(arg.rpartition("=")[2].lower().endswith("renderrunner") for arg in beam_args)


def draw(context: JobContext, beam_args: Sequence[str]) -> list[str]:
    """Draw the graph with Beam's RenderRunner; return the names of the files.

    Raises InputError without a file, and without `dot` for another format than its own.
    """
    files = [arg.removeprefix("--render_output=") for arg in beam_args if "_output=" in arg]
    if not files:
        raise InputError("RenderRunner draws into a file: add --render_output=FILE.svg.")
    if not shutil.which("dot") and not all(name.endswith(".dot") for name in files):
        raise InputError(
            "there is no `dot`, which draws graphs; install the package graphviz, or give "
            "--render_output=FILE.dot."
        )
    is_open = any(arg.startswith("--render_leaf") for arg in beam_args)
    stages = [] if is_open else ["--render_leaf_composite_nodes=[^/]+$"]  # not what is inside
    _beam_runner([*beam_args, *stages])(context)
    return files


def runner_of(context: JobContext, options: JobOptions, beam_args: Sequence[str]) -> RunGraph:
    """What runs the job. Raises InputError for options that do not go together."""
    workers = options.num_workers
    if not context.has_cache:
        _check_without_cache(context, beam_args)
    if not beam_args:
        if _is_in_memory(context) and workers > 1:
            raise InputError(f"{context.out_dir} is visible to one process only; give --workers 1.")
        return partial(in_workers, workers=workers)
    if options.workers > 1:
        raise InputError(
            f"--workers {options.workers} is for this machine, and what follows -- for another "
            "runner; leave one of them out."
        )
    return _beam_runner(beam_args)


def _check_without_cache(context: JobContext, beam_args: Sequence[str]) -> None:
    """Raises InputError for what needs a token cache."""
    needs = {
        "workers and tasks of this machine (give a runner after --)": not beam_args,
        "--deduplicate near": context.config.deduplicate == "near",
        "tokens= of a source": bool(context.budgets),
    }
    for what, is_given in needs.items():
        if is_given:
            raise InputError(f"--token-cache none: {what} need one; leave it out.")


def in_workers(context: JobContext, share: Share | None = None, *, workers: int) -> Outcome:
    """Run the graph in worker processes, or in this one where no other can see the files."""
    if not _is_in_memory(context):
        return run_in_workers(context, share, workers=workers)
    from clozeline.pipeline.job.graph import run_graph

    return run_graph(context, share)


def _is_in_memory(context: JobContext) -> bool:
    """Whether a folder is in fsspec's memory://, which each process has for itself."""
    return any(str(folder).startswith("memory:") for folder in (context.out_dir, context.cache_dir))


def _beam_runner(beam_args: Sequence[str]) -> RunGraph:
    """Beam. Raises InputError for options that it or the runner does not accept."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, LOG)
        try:
            with logging_to(log):
                # Beam logs while it is imported.
                from clozeline.pipeline.commandline.beam_options import make_pipeline
                from clozeline.pipeline.job.graph import run_graph

                return partial(run_graph, root=make_pipeline(beam_args))
        except SystemExit as error:  # Beam's argument parser has printed the reason and exits
            if not error.code:  # or its help
                raise
            reason = last_line(log.read_text()).rpartition("error: ")[2]
            raise InputError(f"Beam rejects the options after --: {reason}.") from error
