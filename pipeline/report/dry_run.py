"""`clozeline shards --dry-run`: the plan of a job, and what it would drop of a sample of its text.

The sample goes through the real steps in a temporary folder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clozeline.pipeline.common.config_checks import counted, size_in_words
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import names_in
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.job.job import Job
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.formats import all_rejected, read_block
from clozeline.pipeline.steps.context import scratch_context
from clozeline.pipeline.steps.stages import choose
from clozeline.pipeline.steps.steps import Steps, punkt_of
from clozeline.pipeline.steps.token_cache import TokenFile

SAMPLED_BLOCKS, SAMPLE_BYTES = 256, 8 << 20  # at most, of all blocks together


def dry_run(job: Job) -> Iterator[str]:
    """The plan, as lines of text. Nothing is written.

    Raises InputError if a source or the tokenizer cannot be used, or the sample contains no text.
    """
    punkt_of(job.tokenizer)
    blocks, context = job.blocks, job.context
    cached = names_in(context.cache_dir)
    done = sum(all(f.name in cached for f in context.files_of(block)) for block in blocks)
    text_bytes, files = sum(b.text_bytes for b in blocks), len({b.path for b in blocks})
    sample = list(read_sample(blocks))
    rejected = [entry for part in sample for entry in part.rejected]
    if not any(part.texts for part in sample):
        if rejected:
            first = rejected[0]
            raise all_rejected(len(rejected), first.where, first.reason, of="sampled document")
        raise InputError(
            "the sampled parts of the sources have no text; give a source that is not empty."
        )
    sampled = sum(len(part.texts) for part in sample) + len(rejected)
    yield (
        f"blocks     {len(blocks):,} in {counted(files, 'source')}, {done:,} already tokenized; "
        f"about {size_in_words(text_bytes)} of text"
    )
    yield (
        f"shards     {context.buckets.num_train:,} for training and "
        f"{context.buckets.num_validation:,} for validation, {context.config.format}, in "
        f"{context.out_dir}"
    )
    for reason, count in sorted(_dropped(sample, job).items()):
        part = f"{count:,} of {sampled:,} documents sampled ({count / sampled:.1%})"
        yield f"dropped    {part}: {reason}"
    if rejected:
        share, limit = len(rejected) / sampled, context.config.max_rejected
        excess = f", more than --max-rejected {limit}" if share > limit else ""
        yield (
            f"rejected   {len(rejected):,} of {sampled:,} documents sampled ({share:.1%}{excess}); "
            f"the first is {rejected[0].where} ({rejected[0].reason})"
        )


def read_sample(blocks: Sequence[Block]) -> Iterator[Documents]:
    """The beginnings of blocks, evenly spaced: 8 MB of text in all, or less of many small ones."""
    count = min(len(blocks), SAMPLED_BLOCKS)
    for block in (blocks[i * len(blocks) // count] for i in range(count)):
        yield next(iter(read_block(block, chunk_bytes=SAMPLE_BYTES // count)), Documents())


def _dropped(sample: Sequence[Documents], job: Job) -> dict[str, int]:
    """What curation drops of the sample, by reason; of near copies, those of sampled documents."""
    one_shard = Buckets(num_train=1, num_validation=0, validation=0.0)
    with scratch_context(job.tokenizer, job.context.config, one_shard) as scratch:
        name = "sample.tokens"
        steps = Steps(replace(scratch, inputs=(TokenFile(name),), tokenized=(name,)))
        steps.cache_tokens(scratch.cache_dir / name, iter(sample))
        choose(steps)
        record, counts = steps.build_shard(0), steps.counts()
        counts.add(record.counts)
    return {
        reason: count
        for reason, count in counts.dropped.items()
        if count and reason.startswith(("quality_", "excluded", "near_duplicate"))
    }
