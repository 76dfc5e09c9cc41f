"""The folder of a data set, before and after a job: who owns it, is it complete, what must go?

    empty or missing                          a job may write there
    manifest.json, or job.json of `shards`    a data set or an unfinished job: it is complete, or
                                              continued, repaired or (--overwrite) replaced
    anything else                             refused, even with --overwrite

A shard is only ever removed if the manifest or job.json lists it. A data set that is replaced stays
until all text is read and gives an example, except by tasks.
"""

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError, first_names, own_version
from clozeline.pipeline.common.folders import check_kind, remove_files
from clozeline.pipeline.common.json_files import file_sha256, json_values, write_json
from clozeline.pipeline.common.paths import (
    PARTIAL,
    is_file,
    make_folder,
    names_in,
    remove_named,
    sizes_in,
)
from clozeline.pipeline.dataset.manifest import (
    DROPPED,
    JOB,
    MANIFEST,
    REJECTED,
    REPORT,
    SHARD_NAME,
    TOKENIZER,
    Manifest,
    read_manifest,
)
from clozeline.pipeline.job.progress import LOG
from clozeline.pipeline.steps.context import NEW_TOKENIZER, JobContext, portable_config
from clozeline.pipeline.steps.token_cache import clear_cache
from clozeline.pipeline.tokenization.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer


def check_folder(context: JobContext) -> None:
    """Raises InputError if the folder is not empty, and neither a data set nor a job's.

    Also if other files are in the way of its tokenizer, which is written into its own subfolder.
    """
    is_own = bool(_read_json(context, MANIFEST) or _read_json(context, JOB))
    check_kind(context.out_dir, "a data set", is_own=is_own)
    folder = context.out_dir / TOKENIZER
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, and the tokenizer goes there; move it.")
    foreign = sorted(
        name for name in set(names_in(folder)) - set(TOKENIZER_FILES) if not name.startswith(".")
    )
    if foreign and not _has_tokenizer(context):
        raise InputError(
            f"{folder} holds files that are not part of a tokenizer ({first_names(foreign)}), and "
            "the tokenizer goes there; move them."
        )


def finished_dataset(context: JobContext) -> Manifest | None:
    """The manifest, if the folder already holds the whole data set that this job would build.

    None if there is no data set, or if files of it are missing or of another size: then the job
    builds them again. Raises InputError if there is another data set: of another config or
    tokenizer, or of other sources.
    """
    out = context.out_dir
    if not is_file(out / MANIFEST):
        return None
    manifest = read_manifest(out)
    if differs := _other_than_asked(context, manifest):
        raise InputError(
            f"{out} holds another finished data set ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )
    sizes = sizes_in(out)
    is_whole = all(sizes.get(shard.name) == shard.bytes for shard in manifest.shards)
    return manifest if is_whole and _has_tokenizer(context) else None


def holds_another(context: JobContext) -> bool:
    """Whether the folder has a data set of another config or tokenizer, or of other sources."""
    with suppress(InputError):
        return bool(_other_than_asked(context, read_manifest(context.out_dir)))
    return False


def begin_job(context: JobContext, tokenizer: Tokenizer) -> JobContext:
    """Make the folders of a job; return its context.

    Another data set stays, with its tokenizer, until all text is read: then a phase removes it.
    """
    if not holds_another(context):
        prepare_folders(context, tokenizer)
        return context
    context = replace(context, replaces=True)
    make_folder(context.cache_dir)
    tokenizer.save(context.tokenizer_dir, overwrite=True)
    return context


def is_begun(context: JobContext) -> bool:
    """Whether the folder is that of this job of texts; it may even be finished.

    Another process may have begun it, and what a runner does once more must not end it.
    """
    manifest = context.out_dir / MANIFEST
    if is_file(manifest):
        return not context.replaced or file_sha256(manifest) != context.replaced
    begun = _read_json(context, JOB).get("files") == context.shard_names
    return begun and _has_tokenizer(context)


def prepare_folders(
    context: JobContext, tokenizer: Tokenizer, *, tasks: dict[str, Any] | None = None
) -> None:
    """Make the folders of the job, and remove what another config left there.

    With `tasks`, what job.json says of the job, only its first task removes shards, and then all of
    them: the others take a shard that exists for one of this job.
    """
    make_folder(context.out_dir)
    make_folder(context.cache_dir)
    if tasks and _read_json(context, JOB).get(TASKS) == tasks[TASKS]:  # another task has begun
        if not _has_tokenizer(context):
            _write_tokenizer(context, tokenizer)
        return
    wanted = set(context.shard_names)
    gone = sorted(_owned_shards(context) - (set() if tasks or context.replaces else wanted))
    log = [LOG] if tasks else []  # without tasks, the job writes to it by now
    for name in (MANIFEST, REJECTED, DROPPED, REPORT, *log, *gone):
        (context.out_dir / name).unlink(missing_ok=True)
    start = {"clozeline": own_version(), "files": sorted(wanted)}
    write_json(context.out_dir / JOB, start)  # before anything else: the folder is a job's
    _write_tokenizer(context, tokenizer)
    if tasks:
        write_json(context.out_dir / JOB, start | tasks)


TASKS = "tasks"  #: key of job.json: the digest of the job whose tasks work in the folder
CACHE = ".cache"  #: the token cache of a job without --token-cache


def remove_leftovers(context: JobContext, *, keep_cache: bool) -> None:
    """Remove what a finished data set does not need, also from a job that was killed."""
    own_cache = context.out_dir / CACHE
    if not keep_cache or own_cache != context.cache_dir:  # left by a call without --token-cache
        clear_cache(own_cache)
    names = names_in(context.out_dir)
    if NEW_TOKENIZER in names:
        remove_files(context.out_dir / NEW_TOKENIZER, TOKENIZER_FILES)
    remove_named(context.out_dir, filter(PARTIAL.fullmatch, names))


def _write_tokenizer(context: JobContext, tokenizer: Tokenizer) -> None:
    folder = context.out_dir / TOKENIZER
    tokenizer.save(
        folder, max_seq_length=context.config.max_seq_length, overwrite=not _has_tokenizer(context)
    )


def _has_tokenizer(context: JobContext) -> bool:
    try:
        return load_tokenizer(context.out_dir / TOKENIZER).digest == context.tokenizer_digest
    except InputError:
        return False


def _other_than_asked(context: JobContext, manifest: Manifest) -> list[str]:
    """What is not as in the data set that this job builds, for a message."""
    changed = differences(
        {**asdict(portable_config(manifest.config)), "tokenizer": manifest.tokenizer_digest},
        {**asdict(portable_config(context.config)), "tokenizer": context.tokenizer_digest},
    )
    if manifest.sources_digest != context.sources_digest:
        changed.append(
            "other sources or excluded texts, or another size or time of change of their files"
        )
    return changed


def _owned_shards(context: JobContext) -> set[str]:
    """The names of the shards that the manifest and job.json list, and of nothing else there."""
    shards, files = (
        _read_json(context, MANIFEST).get("shards"),
        _read_json(context, JOB).get("files"),
    )
    names = [shard.get("name") for shard in shards or () if isinstance(shard, dict)]
    names += files if isinstance(files, list) else []
    return {str(name) for name in names if SHARD_NAME.fullmatch(str(name))}


def _read_json(context: JobContext, name: str) -> dict[str, Any]:
    """A manifest.json or job.json that `clozeline shards` wrote, else nothing."""
    mark = {MANIFEST: "dataset_digest", JOB: "clozeline"}[name]
    if not is_file(context.out_dir / name):
        return {}
    try:
        with json_values(context.out_dir / name, "delete it") as values:
            return values if mark in values else {}
    except InputError:
        return {}
