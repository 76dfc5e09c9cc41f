"""What runs the graph: workers, or a runner of Beam."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.job.progress import LOG, last_line, logging_to
from clozeline.pipeline.job.tasks import Outcome, Share
from clozeline.pipeline.job.workers import run_in_workers
from clozeline.pipeline.steps.context import JobContext

#: Runs the graph; returns when it is done.
RunGraph = Callable[[JobContext], Outcome]


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
