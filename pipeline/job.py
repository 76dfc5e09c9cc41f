"""`clozeline shards`: sources in, a finished data set out, whatever happens in between.

OUT/train-00000-of-00004.arrow ...   shards, each whole or absent
OUT/tokenizer/                       a copy: the data set needs nothing else
OUT/.runs/                           finished blocks; removed at the end
OUT/job.json, OUT/job.log            how it went: times, runner, traceback
OUT/manifest.json                    last of all
"""

import json
import logging
import os
import platform
import re
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TextIO

from pipeline.buckets import TRAIN, VALIDATION, Buckets
from pipeline.config import DataConfig
from pipeline.errors import InputError
from pipeline.manifest import MANIFEST, TOKENIZER, Manifest, read_manifest
from pipeline.shards import SUFFIXES, whole_file
from pipeline.sources import Block, list_blocks
from pipeline.steps import REJECTED, Workplace
from pipeline.tokenizer import Tokenizer, load_tokenizer

JOB = "job.json"
LOG = "job.log"
RUNS = ".runs"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How the work is done; none of it reaches a shard."""

    #: Worker processes on this machine; 0: one for each core.
    workers: int = 0
    #: Text in a block, in bytes: the unit of work and of retry.
    block_bytes: int = 16 << 20
    #: Where finished blocks are kept for other data sets; not given: OUT/.runs, removed at the end.
    runs: Path | None = None
    #: Replace a finished data set of another config.
    overwrite: bool = False

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
    if done := _already_complete(out_dir, config, tokenizer_dir, options.overwrite):
        return done, False
    started = time.time()
    blocks = list_blocks(sources, block_bytes=options.block_bytes, text_columns=config.text_columns)
    place = _prepare(blocks, tokenizer_dir, out_dir, config, options)
    args = list(beam_args) or local_runner(options.workers)
    _run(blocks, place, args)
    manifest = read_manifest(out_dir)
    _write_job(place, sources, args, blocks, started)
    if options.runs is None:
        shutil.rmtree(place.runs_dir)
    for leftover in out_dir.glob(".*.partial"):  # of a process that was killed
        leftover.unlink(missing_ok=True)
    return manifest, True


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
    out_dir: Path, config: DataConfig, tokenizer_dir: Path, overwrite: bool
) -> Manifest | None:
    if not (out_dir / MANIFEST).exists() or overwrite:
        return None
    manifest = read_manifest(out_dir)
    tokenizer = load_tokenizer(tokenizer_dir)
    differs = [
        f"{name} {manifest.config.to_dict()[name]!r} there, {value!r} now"
        for name, value in config.to_dict().items()
        if manifest.config.to_dict()[name] != value
    ]
    if manifest.tokenizer_digest != tokenizer.digest:
        differs.append(
            f"tokenizer {manifest.tokenizer_digest[:8]} there, {tokenizer.digest[:8]} now"
        )
    if differs:
        raise InputError(
            f"{out_dir} holds a finished data set of another config ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )
    return manifest


def _prepare(
    blocks: list[Block],
    tokenizer_dir: Path,
    out_dir: Path,
    config: DataConfig,
    options: JobOptions,
) -> Workplace:
    """The folders of the job, without what other configs left there."""
    tokenizer = load_tokenizer(tokenizer_dir)
    runs_dir = options.runs or out_dir / RUNS
    place = Workplace(
        out_dir=out_dir.absolute(),
        runs_dir=runs_dir.absolute(),
        config=config,
        buckets=Buckets.plan(config, sum(block.text_bytes for block in blocks)),
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
    )
    _make_folder(out_dir)
    _make_folder(runs_dir)
    _remove_others(place)
    _save_tokenizer(tokenizer, out_dir / TOKENIZER, overwrite=options.overwrite)
    return place


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, *, overwrite: bool) -> None:
    try:
        tokenizer.save(folder)
    except InputError:  # there is another one
        if not overwrite:
            raise
        shutil.rmtree(folder)
        tokenizer.save(folder)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be made a folder ({error.strerror}); give another."
        ) from error


def _remove_others(place: Workplace) -> None:
    for name in (MANIFEST, JOB, LOG, REJECTED):
        (place.out_dir / name).unlink(missing_ok=True)
    wanted = {place.shard_path(bucket) for bucket in range(len(place.buckets))}
    for split, suffix in product((TRAIN, VALIDATION), SUFFIXES.values()):
        for shard in place.out_dir.glob(f"{split}-?????-of-?????{suffix}"):
            if shard not in wanted:
                shard.unlink()


def _run(blocks: list[Block], place: Workplace, beam_args: list[str]) -> None:
    from pipeline.progress import show_progress

    log = place.out_dir / LOG
    try:
        with _logging_to(log) as terminal, show_progress(blocks, place, terminal):
            from pipeline.build import run_graph  # Beam logs while it is imported

            run_graph(blocks, place=place, beam_args=beam_args)
    except SystemExit as error:  # Beam's parser has written what is wrong, and leaves
        reason = _last_line(log.read_text()).rpartition("error: ")[2]
        raise InputError(
            f"Beam refuses what follows --: {reason} (all of it is in {log})."
        ) from error
    except Exception as error:
        with log.open("a") as file:
            traceback.print_exc(file=file)
        if message := _user_message(error):
            raise InputError(message) from error
        reason = _last_line(str(error)) or type(error).__name__
        raise InputError(
            f"the job failed: {reason} (all of it is in {log}). What is finished stays; the same "
            "command goes on from there."
        ) from error


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
    found = re.search(r"InputError: (.*?)(?: \[while running|\n|\Z)", _whole_text(error))
    if found:
        return found[1]
    return None


def _whole_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _write_job(
    place: Workplace,
    sources: Sequence[str],
    beam_args: list[str],
    blocks: list[Block],
    started: float,
) -> None:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = time.time() - started
    text_bytes = sum(block.text_bytes for block in blocks)
    facts: dict[str, Any] = {
        "sources": list(sources),
        "blocks": len(blocks),
        "text_bytes": text_bytes,
        "beam_args": beam_args,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(sum(u.ru_utime + u.ru_stime for u in usage), 2),
        "megabytes_per_second": round(text_bytes / seconds / 1e6, 3),
        "peak_process_megabytes": max(u.ru_maxrss for u in usage) // 1024,
        "host": platform.node(),
        "python": sys.version.split()[0],
    }
    with whole_file(place.out_dir / JOB) as file:
        file.write((json.dumps(facts, indent=2) + "\n").encode())
