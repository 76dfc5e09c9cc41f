"""`clozeline shards`: text sources to a finished data set.

OUT/train-00000-of-00004.arrow ...   shards, each whole or absent
OUT/tokenizer/                       a copy: the data set needs nothing else
OUT/.cache/                          token cache; removed on success
OUT/.tokenizer/                      the new one, while the data set that is replaced has its own
OUT/job.json, OUT/job.log            how it went: times, runner, traceback
OUT/manifest.json                    last of all
"""

import math
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from clozeline.pipeline.common.config_checks import check_keywords, seconds, with_fields
from clozeline.pipeline.common.errors import InputError, JobFailedError, check_packages
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.json_files import add_to_json
from clozeline.pipeline.common.paths import (
    AnyPath,
    GivenPath,
    each_given,
    is_file,
    naming_store,
    path_of,
)
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.mixture import budgets_of
from clozeline.pipeline.curation.near.steps import BYTES_PER_PARTITION
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.manifest import JOB, MANIFEST, Manifest, read_manifest
from clozeline.pipeline.job.fork_server import fork_server
from clozeline.pipeline.job.options import JobOptions, Task
from clozeline.pipeline.job.out_folder import (
    CACHE,
    TASKS,
    begin_job,
    check_folder,
    finished_dataset,
    holds_another,
    prepare_folders,
    remove_leftovers,
)
from clozeline.pipeline.job.progress import (
    LOG,
    Progress,
    costs_of_job,
    error_of_a_worker,
    facts_of_job,
    last_line,
    log_file,
    logging_to,
    show_progress,
)
from clozeline.pipeline.job.tasks import Outcome, Share, TaskShare
from clozeline.pipeline.job.workers import run_in_workers
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import each_document, spooled
from clozeline.pipeline.sources.formats import check_columns_used
from clozeline.pipeline.steps.context import (
    JobContext,
    blocks_of,
    job_digest,
    new_context,
    sources_digest,
)
from clozeline.pipeline.steps.steps import punkt_of
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

BYTES_PER_TOKEN: Final = 5  #: of text, for the number of shards of a budget
#: Runs the graph; returns when it is done.
RunGraph = Callable[[JobContext], Outcome]


def build_shards(
    sources: GivenPath | Iterable[GivenPath] = (),
    *,
    tokenizer: GivenPath,
    out: GivenPath,
    config: DataConfig | None = None,
    options: JobOptions | None = None,
    beam_args: Sequence[str] = (),
    documents: Iterable[str | Mapping[str, Any]] | None = None,
    keep: Callable[[Any], bool] | None = None,
    **fields: Any,
) -> tuple[Manifest, bool]:
    """Build the data set; return its manifest, and False if it was already complete.

        >>> manifest, is_new = build_shards(
        ...     "sample:articles?size=300KB",
        ...     tokenizer="work/tokenizer",
        ...     out="work/shards",
        ...     max_seq_length=64,
        ...     pairs="none",
        ...     workers=1,
        ... )
        >>> is_new
        True

    Options are fields of DataConfig and JobOptions, as keywords or in these objects.
    `documents`, instead of sources, are texts, dicts with the text columns, a `datasets.Dataset` or
    a table of pyarrow, pandas or polars. They are written to a file in TMPDIR while the job runs;
    the same ones are the same source. Those for which `keep` is false are left out.

    Raises InputError for what the user can fix, StoreError for a store that does not answer or
    refuses, and JobFailedError if the job fails on the way. What is finished by then stays, and the
    same call continues from there.
    """
    check_packages("a data set", "nltk", "regex", "apache_beam")
    check_keywords(build_shards, fields, DataConfig, JobOptions)
    config = with_fields(config or DataConfig(), fields)
    options, folder = with_fields(options or JobOptions(), fields), path_of(out)
    named = list(each_given(sources))
    if documents is None:
        if keep is not None:
            raise InputError("keep filters `documents`; sources are filtered by `quality`.")
        return _build(named, tokenizer, folder, config, options, beam_args)
    if named:
        raise InputError("sources and documents are both given; leave one of them out.")
    if not (keep is None or callable(keep)):
        raise InputError(f"keep is {keep!r:.80}; give a function of a document, true to keep it.")
    chosen = filter(keep, each_document(documents)) if keep else documents
    with spooled(chosen, config.text_columns, folder.absolute()) as source:
        return _build([source], tokenizer, folder, config, options, beam_args)


def _build(
    sources: Sequence[str],
    tokenizer: GivenPath,
    out: AnyPath,
    config: DataConfig,
    options: JobOptions,
    beam_args: Sequence[str],
) -> tuple[Manifest, bool]:
    started = time.time()
    if not beam_args:
        fork_server()  # it imports Beam meanwhile
    job = plan_job(sources, tokenizer, out, config, options)
    if manifest := job.finished():
        with naming_store(job.out_dir):
            remove_leftovers(job.context, keep_cache=job.keep_cache)
        return manifest, False
    punkt_of(job.tokenizer)  # its Punkt parameters may be missing or invalid
    if not job.options.task:
        return _run_whole(job, beam_args, started), True
    if beam_args:
        raise InputError("--task runs on this machine; leave out -- and what follows it.")
    return _run_as_task(job)


@dataclass(frozen=True)
class Job:
    """What a call asks for, once its sources and tokenizer are read."""

    sources: Sequence[str]
    blocks: list[Block]
    tokenizer: Tokenizer
    out_dir: AnyPath
    options: JobOptions
    context: JobContext

    @property
    def keep_cache(self) -> bool:
        return self.options.token_cache is not None and self.options.has_cache

    def finished(self) -> Manifest | None:
        """The data set, if it is complete and not to be replaced. Raises InputError, StoreError."""
        with naming_store(self.out_dir):
            check_folder(self.context)
            return None if self.options.overwrite else finished_dataset(self.context)


def plan_job(
    sources: Sequence[str],
    tokenizer: GivenPath,
    out_dir: AnyPath,
    config: DataConfig | None,
    options: JobOptions | None,
) -> Job:
    """Raises InputError for a source, tokenizer or option that cannot be used."""
    config, options = config or DataConfig(), options or JobOptions()
    blocks = blocks_of(sources, config, block_bytes=options.block_bytes)
    loaded = load_tokenizer(tokenizer)
    cache = options.token_cache if options.has_cache else None
    text_bytes = sum(block.text_bytes for block in blocks)
    budget = sum(budgets_of(blocks).values())
    weighted = sum(block.text_bytes * block.repeat for block in blocks)
    context = new_context(
        loaded,
        config,
        out_dir=out_dir.absolute(),
        cache_dir=path_of(cache or out_dir / CACHE).absolute(),
        has_cache=options.has_cache,
        buckets=Buckets.plan(config, max(weighted, budget * BYTES_PER_TOKEN)),
        partitions=math.ceil(text_bytes / BYTES_PER_PARTITION) or 1,
    )
    others = [part for _, part in context.excluded]
    check_columns_used(config.text_columns, chain(blocks, *others))
    context = replace(context, sources_digest=sources_digest(blocks, others))
    return Job(sources, blocks, loaded, out_dir, options, context.reading(blocks))


def _run_whole(job: Job, beam_args: Sequence[str], started: float) -> Manifest:
    """Do the whole job: in workers on this machine, or on another runner of Beam."""
    run_graph = runner_of(job.context, job.options, beam_args)  # before anything is removed
    with naming_store(job.out_dir), locked_folder(job.out_dir):
        job = replace(job, context=begin_job(job.context, job.tokenizer))
        progress = Progress(job.blocks if job.options.has_cache else [], job.context)
        outcome = _run(run_graph, job, progress)
        about = facts_of_job(job.sources, job.blocks, job.context)
        about |= costs_of_job(progress, list(beam_args), started, outcome.worker_seconds)
        about["counters"] = dict(sorted(outcome.counters.items()))
        add_to_json(job.out_dir / JOB, about)
        remove_leftovers(job.context, keep_cache=job.keep_cache)
        return read_manifest(job.out_dir)


def _run_as_task(job: Job) -> tuple[Manifest, bool]:
    """Do a share of the job; return, when all are done, whether this task has finished it."""
    assert job.options.task
    context, digest = job.context, job_digest(job.context)
    tasks = {TASKS: digest, **facts_of_job(job.sources, job.blocks, context)}
    prepare = partial(prepare_folders, context, job.tokenizer, tasks=tasks)
    wait = seconds(job.options.wait, name="wait", zero=True)
    with naming_store(context.out_dir), locked_folder(context.out_dir, digest, prepare):
        share = TaskShare(Task.parse(job.options.task), wait)
        try:
            outcome = in_workers(context, share, workers=1)
        except RuntimeError as error:
            raise error_of_a_worker(error) or error from error
        remove_leftovers(context, keep_cache=job.keep_cache)
    return read_manifest(job.out_dir), outcome.is_last


def _run(run_graph: RunGraph, job: Job, progress: Progress) -> Outcome:
    context = job.context
    with log_file(context.out_dir) as log:
        try:
            with logging_to(log) as terminal, show_progress(progress, terminal):
                outcome = run_graph(context)
            is_old = context.replaces and holds_another(context)
            if is_old or not is_file(context.out_dir / MANIFEST):  # Dask's scheduler has died
                raise RuntimeError("the runner stopped before the last step")
            return outcome
        except Exception as error:
            with log.open("a") as file:
                traceback.print_exc(file=file)
            if known := error_of_a_worker(error):
                raise known from error
            reason = last_line(str(error)) or type(error).__name__
            raise JobFailedError(
                f"the job failed: {reason} (details in {context.out_dir / LOG}). Finished work is "
                "kept; rerun the command to continue."
            ) from error


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
    for feature, is_given in needs.items():
        if is_given:
            raise InputError(f"--token-cache none: {feature} need one; leave it out.")


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
