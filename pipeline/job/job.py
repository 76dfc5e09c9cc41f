"""`clozeline shards`: sources in, a finished data set out, whatever happens in between.

OUT/train-00000-of-00004.arrow ...   shards, each whole or absent
OUT/tokenizer/                       a copy: the data set needs nothing else
OUT/.cache/                          token cache; removed at the end
OUT/job.json, OUT/job.log            how it went: times, runner, traceback
OUT/manifest.json                    last of all
"""

import json
import logging
import os
import platform
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any, TextIO

from pipeline.common.config_options import option
from pipeline.common.errors import InputError
from pipeline.common.paths import is_local, make_folder, names_in, remove_folder, whole_file
from pipeline.config import DataConfig
from pipeline.dataset.buckets import TRAIN, VALIDATION, Buckets
from pipeline.dataset.manifest import JOB, MANIFEST, REJECTED, TOKENIZER, Manifest, read_manifest
from pipeline.dataset.shards import SUFFIXES
from pipeline.job.progress import Progress, show_progress
from pipeline.job.steps import JobContext
from pipeline.sources.formats import Block, list_blocks
from pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

LOG = "job.log"
CACHE = ".cache"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How the work is done; none of it reaches a shard."""

    workers: int = option(0, "Worker processes on this machine; 0 uses every core.")
    block_bytes: int = option(16 << 20, "Bytes of text per block, the unit of work and of retry.")
    token_cache: Path | None = option(
        None,
        "Keep tokenized blocks here for other data sets. Default: OUT/.cache, removed on success.",
    )
    overwrite: bool = option(
        False, "Replace a finished data set that has another config or other sources."
    )

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers is {self.workers}; give 0 (all cores) or more.")
        if self.block_bytes < 1:
            raise ValueError(f"block_bytes is {self.block_bytes}; give at least 1.")


def build_shards(
    sources: Sequence[str],
    *,
    tokenizer_dir: Path,
    out_dir: Path,
    config: DataConfig,
    options: JobOptions,
    beam_args: Sequence[str] = (),
) -> tuple[Manifest, bool]:
    """Make the data set, and tell whether anything had to be done.

    Raises InputError for all that the user can mend; what was finished until then stays, and the
    same call goes on from there.
    """
    started = time.time()
    blocks = list_blocks(sources, block_bytes=options.block_bytes, text_columns=config.text_columns)
    tokenizer = load_tokenizer(tokenizer_dir)
    if (out_dir / "run.json").exists():
        raise InputError(f"{out_dir} is a run of `clozeline pretrain`; give another --out.")
    context = workplace(blocks, tokenizer, out_dir, config, options)
    if not options.overwrite and (done := _already_complete(out_dir, config, tokenizer, blocks)):
        _tidy(context, options)
        return done, False
    named = any(arg.split("=")[0] == "--runner" for arg in beam_args)
    args = list(beam_args) if named else [*local_runner(options.workers), *beam_args]
    _check_shared(context, args)
    _prepare(context, tokenizer, options)
    progress = Progress.of(blocks, context)
    _run(blocks, context, args, progress)
    _write_job(progress, sources, args, blocks, started)
    _tidy(context, options)
    return read_manifest(out_dir), True


def plan_shards(
    sources: Sequence[str],
    *,
    tokenizer_dir: Path,
    out_dir: Path,
    config: DataConfig,
    options: JobOptions,
) -> Iterator[str]:
    """Lines that say what `build_shards` would do. Raises InputError as that does."""
    from pipeline.job.dry_run import dry_run

    blocks = list_blocks(sources, block_bytes=options.block_bytes, text_columns=config.text_columns)
    tokenizer = load_tokenizer(tokenizer_dir)
    if not options.overwrite and _already_complete(out_dir, config, tokenizer, blocks):
        yield f"nothing: {out_dir} is complete already"
        return
    context = workplace(blocks, tokenizer, out_dir, config, options)
    yield from dry_run(blocks, context, tokenizer, workers=options.workers or os.cpu_count() or 1)


def workplace(
    blocks: Sequence[Block],
    tokenizer: Tokenizer,
    out_dir: Path,
    config: DataConfig,
    options: JobOptions,
) -> JobContext:
    """What every worker of the job must know."""
    return JobContext(
        out_dir=out_dir.absolute(),
        cache_dir=(options.token_cache or out_dir / CACHE).absolute(),
        config=config,
        buckets=Buckets.plan(config, sum(block.text_bytes for block in blocks)),
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
    )


def local_runner(workers: int) -> list[str]:
    """Beam options for this machine: one process, or one worker process a core.

    The runner is named in full, for `DirectRunner` tries to download another one.
    """
    workers = workers or os.cpu_count() or 1
    mode = "in_memory" if workers == 1 else "multi_processing"
    runner = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    return [
        f"--runner={runner}",
        f"--direct_running_mode={mode}",
        f"--direct_num_workers={workers}",
    ]


def _already_complete(
    out_dir: Path, config: DataConfig, tokenizer: Tokenizer, blocks: Sequence[Block]
) -> Manifest | None:
    if not (out_dir / MANIFEST).exists():
        return None
    manifest = read_manifest(out_dir)
    there = manifest.config.to_dict()
    differs = [
        f"{name} {there[name]!r} there, {value!r} now"
        for name, value in config.to_dict().items()
        if there[name] != value
    ]
    if manifest.tokenizer_digest != tokenizer.digest:
        differs.append(
            f"tokenizer {manifest.tokenizer_digest[:8]} there, {tokenizer.digest[:8]} now"
        )
    if _other_sources(out_dir / JOB, blocks):
        differs.append("other sources, or their files changed")
    if differs:
        raise InputError(
            f"{out_dir} holds a finished data set of another config ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )
    return manifest


def _other_sources(job: Path, blocks: Sequence[Block]) -> bool:
    """Whether the data set says that it was made of something else."""
    try:
        facts = json.loads(job.read_bytes())
    except (OSError, ValueError):  # who copies a data set may leave it behind
        return False
    return facts.get("sources_digest", "") not in ("", _sources_digest(blocks))


def _sources_digest(blocks: Sequence[Block]) -> str:
    """Names the files and what changes with them, however they are cut into blocks."""
    spans: dict[str, list[int]] = {}
    for block in blocks:
        key = json.dumps([block.path, block.format, block.version])
        spans.setdefault(key, []).extend((block.start, block.stop))
    facts = sorted((key, min(edges), max(edges)) for key, edges in spans.items())
    return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _check_shared(context: JobContext, beam_args: Sequence[str]) -> None:
    """The store that fsspec calls `memory` is that of one process."""
    in_one_process = "--direct_running_mode=in_memory" in beam_args
    for folder in (context.out_dir, context.cache_dir):
        if str(folder).startswith("memory:") and not in_one_process:
            raise InputError(f"{folder} is seen by one process only; give --workers 1.")


def _prepare(context: JobContext, tokenizer: Tokenizer, options: JobOptions) -> None:
    """The folders of the job, without what other configs left there."""
    make_folder(context.out_dir)
    make_folder(context.cache_dir)
    _remove_others(context)
    folder = context.out_dir / TOKENIZER
    try:
        tokenizer.save(folder)
    except InputError:  # there is another one
        if not options.overwrite:
            raise
        remove_folder(folder)
        tokenizer.save(folder)


def _remove_others(context: JobContext) -> None:
    for name in (MANIFEST, JOB, LOG, REJECTED):
        (context.out_dir / name).unlink(missing_ok=True)
    wanted = {context.shard_path(bucket) for bucket in range(len(context.buckets))}
    for split, suffix in product((TRAIN, VALIDATION), SUFFIXES.values()):
        for shard in context.out_dir.glob(f"{split}-?????-of-?????{suffix}"):
            if shard not in wanted:
                shard.unlink()


def _tidy(context: JobContext, options: JobOptions) -> None:
    """Without what a finished data set needs no longer, of this job or of one that was killed."""
    if options.token_cache is None:
        remove_folder(context.cache_dir)
    for name in names_in(context.out_dir):
        if name.startswith(".") and name.endswith(".partial"):
            (context.out_dir / name).unlink(missing_ok=True)


def _run(
    blocks: list[Block], context: JobContext, beam_args: list[str], progress: Progress
) -> None:
    with _log_file(context) as log:
        try:
            with _logging_to(log) as terminal, show_progress(progress, terminal):
                from pipeline.job.beam_graph import run_graph  # Beam logs while it is imported

                run_graph(blocks, context=context, beam_args=beam_args)
        except SystemExit as error:  # Beam's parser has written what is wrong, and leaves
            reason = _last_line(log.read_text()).rpartition("error: ")[2]
            raise InputError(
                f"Beam refuses what follows --: {reason} (all of it is in {context.out_dir / LOG})."
            ) from error
        except Exception as error:
            with log.open("a") as file:
                traceback.print_exc(file=file)
            if message := _user_message(error):
                raise InputError(message) from error
            reason = _last_line(str(error)) or type(error).__name__
            raise InputError(
                f"the job failed: {reason} (all of it is in {context.out_dir / LOG}). What is "
                "finished stays; the same command goes on from there."
            ) from error


@contextmanager
def _log_file(context: JobContext) -> Iterator[Path]:
    """A local file for the log; where the data set is kept elsewhere, it follows at the end."""
    log = context.out_dir / LOG
    if is_local(log):
        yield log
        return
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch, LOG)
        try:
            yield local
        finally:
            log.write_bytes(local.read_bytes())


@contextmanager
def _logging_to(path: Path) -> Iterator[TextIO]:
    """What Beam and its workers log goes to a file, and the terminal is lent to the progress.

    Worker processes write to the standard error they inherit, so it is the descriptor that is
    turned away, not only Python's own logging.
    """
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w") as terminal, path.open("w") as log:
        handler = logging.StreamHandler(log)
        root = logging.getLogger()
        others, root.handlers = root.handlers, [handler]
        os.dup2(log.fileno(), 2)
        try:
            yield terminal
        finally:
            os.dup2(terminal.fileno(), 2)
            root.handlers = others


def _user_message(error: BaseException) -> str | None:
    """The message of an InputError that a runner carried here, often as text of a traceback."""
    names = r"(?:InputError|CorruptDataError)"
    found = re.search(rf"{names}: (.*?)(?: \[while running|\n|\Z)", _whole_text(error))
    return found[1] if found else None


def _whole_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if any(map(str.isalpha, line))]
    return lines[-1].strip() if lines else ""


def _write_job(
    progress: Progress,
    sources: Sequence[str],
    beam_args: list[str],
    blocks: list[Block],
    started: float,
) -> None:
    """Complete what the last step of the graph wrote of the workers."""
    path = progress.context.out_dir / JOB
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = time.time() - started
    text_bytes = sum(block.text_bytes for block in blocks)
    facts: dict[str, Any] = {
        "sources": list(sources),
        "sources_digest": _sources_digest(blocks),
        "blocks": len(blocks),
        "shards": len(progress.shards),
        "text_bytes": text_bytes,
        "rejected": progress.rejected,
        "beam_args": beam_args,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(sum(u.ru_utime + u.ru_stime for u in usage), 2),
        "megabytes_per_second": round(text_bytes / seconds / 1e6, 3),
        "peak_memory_megabytes": progress.peak_memory // 1_000_000,
        "host": platform.node(),
        "python": sys.version.split()[0],
    }
    facts |= json.loads(path.read_bytes())
    with whole_file(path) as file:
        file.write((json.dumps(facts, indent=2) + "\n").encode())
