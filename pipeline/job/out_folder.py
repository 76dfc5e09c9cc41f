"""The folder of a data set, before and after a job: is it complete, and what has to go?"""

from itertools import product

from pipeline.common.differences import differences
from pipeline.common.errors import InputError
from pipeline.common.paths import make_folder, names_in, remove_folder
from pipeline.dataset.buckets import TRAIN, VALIDATION
from pipeline.dataset.manifest import JOB, MANIFEST, REJECTED, TOKENIZER, Manifest, read_manifest
from pipeline.dataset.shards import SUFFIXES
from pipeline.job.job_log import LOG
from pipeline.job.steps import JobContext
from pipeline.tokenization.tokenizer import Tokenizer


def finished_dataset(context: JobContext) -> Manifest | None:
    """The manifest, if the folder already holds the data set that this job would build.

    Raises InputError if it holds another one: another config or tokenizer, or other sources. A data
    set that does not record its sources counts as another one.
    """
    out = context.out_dir
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    differs = differences(
        {**manifest.config.to_dict(), "tokenizer": manifest.tokenizer_digest},
        {**context.config.to_dict(), "tokenizer": context.tokenizer_digest},
    )
    if not manifest.sources_digest:
        differs.append("its sources are not recorded")
    elif manifest.sources_digest != context.sources_digest:
        differs.append("other sources, or their files changed")
    if differs:
        raise InputError(
            f"{out} holds another finished data set ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )
    return manifest


def prepare_folders(context: JobContext, tokenizer: Tokenizer, *, overwrite: bool) -> None:
    """Make the folders of the job, and remove what another config left there."""
    make_folder(context.out_dir)
    make_folder(context.cache_dir)
    _remove_others(context)
    folder = context.out_dir / TOKENIZER
    try:
        tokenizer.save(folder)
    except InputError:  # there is another one
        if not overwrite:
            raise
        remove_folder(folder)
        tokenizer.save(folder)


def remove_leftovers(context: JobContext, *, keep_cache: bool) -> None:
    """Remove what a finished data set does not need, also from a job that was killed."""
    if not keep_cache:
        remove_folder(context.cache_dir)
    for name in names_in(context.out_dir):
        if name.startswith(".") and name.endswith(".partial"):
            (context.out_dir / name).unlink(missing_ok=True)


def _remove_others(context: JobContext) -> None:
    for name in (MANIFEST, JOB, LOG, REJECTED):
        (context.out_dir / name).unlink(missing_ok=True)
    wanted = {context.shard_path(bucket) for bucket in range(len(context.buckets))}
    for split, suffix in product((TRAIN, VALIDATION), SUFFIXES.values()):
        for shard in context.out_dir.glob(f"{split}-?????-of-?????{suffix}"):
            if shard not in wanted:
                shard.unlink()
