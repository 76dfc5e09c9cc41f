"""`clozeline shards --dry-run`: the plan of a job, with figures estimated from a part of its text.

The part goes through the real steps in a temporary folder, so the figures are those of this text,
this config and this machine.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from clozeline.pipeline.common.config_checks import counted, size_in_words, time_in_words
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, names_in
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.job.job import plan_job
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import TRUNCATED, Documents, Rejected
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.steps.context import JobContext, scratch_context
from clozeline.pipeline.steps.stages import choose
from clozeline.pipeline.steps.steps import Steps, punkt_of
from clozeline.pipeline.steps.token_cache import TokenFile
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

SAMPLES = 4  # blocks whose beginnings are read, evenly spaced; more if they are small
MOST_SAMPLES = 256
SAMPLE_BYTES = 2 << 20  # of text from each of 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the whole job would write, and its CPU time."""

    examples: int
    shard_bytes: int
    cpu_seconds: float
    sampled: int  #: documents in the sample, including rejected ones
    rejected: list[Rejected]  #: in the sample
    dropped: dict[str, int]  #: by curation, in the sample; near copies of other documents are not


@dataclass
class Sample:
    """The beginnings of some blocks, and what was found in them."""

    #: What was read, in the unit of `Block.text_bytes`: of most formats, bytes of the source.
    text_bytes: float = 0.0
    documents: int = 0  #: without rejected ones
    rejected: list[Rejected] = field(default_factory=list)

    def read(self, blocks: Sequence[Block]) -> Iterator[Documents]:
        """The documents; more of each block if there are only few blocks."""
        text_bytes, wanted = sum(block.text_bytes for block in blocks), SAMPLE_BYTES * SAMPLES
        small = len(blocks) * wanted // max(text_bytes, 1)  # blocks that have so much text
        count = min(len(blocks), max(SAMPLES, min(small, MOST_SAMPLES)))
        for block in (blocks[i * len(blocks) // count] for i in range(count)):
            size, part = 0, 1.0
            for chunk in read_block(block, chunk_bytes=SAMPLE_BYTES):
                self.documents += len(chunk.texts)
                self.rejected += (entry for entry in chunk.rejected if entry.kind != TRUNCATED)
                yield chunk
                size += sum(len(text.encode(errors="replace")) for text in chunk.texts)
                if size >= wanted // count:
                    # Of a block that is cut short, `text_bytes` are those of its documents.
                    part = chunk.done if block.documents is None else size / block.text_bytes
                    break
            self.text_bytes += block.text_bytes * part


def estimate(blocks: Sequence[Block], context: JobContext, tokenizer: Tokenizer) -> Estimate:
    """Process some of the text and scale up.

    Raises InputError if a source cannot be read, or if the sample contains no text.
    """
    sample = Sample()
    one_shard = Buckets(num_train=1, num_validation=0, validation=0.0)
    with scratch_context(tokenizer, context.config, one_shard) as scratch:
        name = "sample.tokens"
        steps = Steps(replace(scratch, inputs=(TokenFile(name),), tokenized=(name,)))
        # The first text loads the tokenizer and makes its tables, which takes as long for any text.
        steps.cache_tokens(scratch.cache_dir / "ready.tokens", [Documents(texts=["A text."])])
        started = time.process_time()
        steps.cache_tokens(scratch.cache_dir / name, sample.read(blocks))
        if not sample.documents:
            raise InputError(_no_text(sample.rejected))
        choose(steps)
        record, counts = steps.build_shard(0), steps.counts()
        counts.add(record.counts)
        seconds = time.process_time() - started
    used = sum(block.text_bytes * block.repeat for block in blocks if not block.share)
    budget = sum(tokens for _, tokens in context.budgets)
    repeated = used / sample.text_bytes + budget / max(counts.read["tokens"], 1)
    return Estimate(
        examples=round(record.entry.rows * repeated),
        shard_bytes=round(record.entry.bytes * repeated),
        cpu_seconds=seconds * sum(block.text_bytes for block in blocks) / sample.text_bytes,
        sampled=sample.documents + len(sample.rejected),
        rejected=sample.rejected,
        dropped={
            reason: count
            for reason, count in counts.dropped.items()
            if count and reason.startswith(("quality_", "excluded", "near_duplicate"))
        },
    )


def _no_text(rejected: Sequence[Rejected]) -> str:
    if not rejected:
        return "the sampled parts of the sources have no text; give a source that is not empty."
    return (
        f"every document sampled is rejected, {len(rejected):,} in all; the first is "
        f"{rejected[0].where} ({rejected[0].reason}); check --text-columns and the format "
        "of the sources."
    )


def dry_run(
    blocks: Sequence[Block], context: JobContext, tokenizer: Tokenizer, *, workers: int
) -> Iterator[str]:
    """The plan, as lines of text. Nothing is written."""
    cached = names_in(context.cache_dir)
    done = sum(all(f.name in cached for f in context.files_of(block)) for block in blocks)
    text_bytes = sum(block.text_bytes for block in blocks)
    files = len({block.path for block in blocks})
    whole = estimate(blocks, context, tokenizer)
    yield (
        f"blocks     {len(blocks):,} in {counted(files, 'source')}, {done:,} already tokenized; "
        f"about {size_in_words(text_bytes)} of text"
    )
    yield (
        f"shards     {context.buckets.num_train:,} for training and "
        f"{context.buckets.num_validation:,} for validation, {context.config.format}, about "
        f"{size_in_words(whole.shard_bytes)}, in {context.out_dir}"
    )
    for reason, count in sorted(whole.dropped.items()):
        yield (
            f"dropped    {count:,} of {whole.sampled:,} documents sampled "
            f"({count / whole.sampled:.1%}): {reason}"
        )
    if whole.rejected:
        share, first = len(whole.rejected) / whole.sampled, whole.rejected[0]
        limit = context.config.max_rejected
        excess = f", more than --max-rejected {limit}" if share > limit else ""
        yield (
            f"rejected   {len(whole.rejected):,} of {whole.sampled:,} documents sampled "
            f"({share:.1%}{excess}); the first is {first.where} ({first.reason})"
        )
    two_digits = float(f"{whole.examples:.2g}")  # as precise as an estimate is
    yield f"examples   about {two_digits:,.0f}"
    yield (
        f"time       about {time_in_words(max(whole.cpu_seconds / workers, 1))} with "
        f"{counted(workers, 'worker')} on this machine"
    )


def plan_shards(
    sources: Sequence[str],
    *,
    tokenizer: AnyPath,
    out: AnyPath,
    config: DataConfig,
    options: JobOptions,
) -> Iterator[str] | None:
    """Lines that say what `build_shards` would do; None where the data set is complete.

    Raises InputError where it would.
    """
    job = plan_job(sources, tokenizer, out, config, options)
    if job.finished():
        return None
    punkt_of(job.tokenizer)
    return dry_run(job.blocks, job.context, job.tokenizer, workers=options.num_workers)
