"""`clozeline shards --dry-run`: what a job would do, told from a small part of its text.

The part is worked on for real, in a folder that is removed, so the numbers are those of this text,
this config and this machine.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.common.counts import Counts
from pipeline.common.errors import InputError
from pipeline.common.paths import is_local, names_in
from pipeline.dataset.buckets import TRAIN, Buckets
from pipeline.dataset.schema import example_schema
from pipeline.dataset.shards import write_shard
from pipeline.examples.examples import make_examples
from pipeline.job.steps import JobContext
from pipeline.job.token_cache import cache_schema, list_slices, read_documents, write_cache_file
from pipeline.sources.block import Block
from pipeline.sources.formats import read_block
from pipeline.tokenization.documents import TokenizedDocuments, tokenize_documents
from pipeline.tokenization.fast_wordpiece import ColumnTokenizer
from pipeline.tokenization.sentences import PunktData, SentenceSplitter
from pipeline.tokenization.tokenizer import Tokenizer

PLACES = 4  # of the text that are looked at, spread evenly
PLACE_BYTES = 2 << 20  # of text at each


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the whole job would make and take, estimated."""

    examples: int
    shard_bytes: int
    cache_bytes: int
    cpu_seconds: float


def estimate(blocks: Sequence[Block], context: JobContext, tokenizer: Tokenizer) -> Estimate:
    """Work on some of the text, and scale. Raises InputError where a source cannot be read."""
    if tokenizer.punkt is None:
        raise InputError("the tokenizer has no parameters of Punkt; make it with this version.")
    splitter = SentenceSplitter(PunktData.from_json(tokenizer.punkt))
    config, read_bytes = context.config, 0
    schema = example_schema(tokenizer.vocab_size, tokenizer.digest)

    def pieces() -> Iterator[tuple[TokenizedDocuments, Counts]]:
        nonlocal read_bytes
        columns = ColumnTokenizer(tokenizer)
        for texts in _some_texts(blocks):
            read_bytes += sum(len(text.encode(errors="replace")) for text in texts)
            yield tokenize_documents(
                texts, splitter=splitter, tokenizer=columns, min_characters=config.min_characters
            )

    with tempfile.TemporaryDirectory() as scratch:
        started = time.process_time()
        cache, shard = Path(scratch, "cache"), Path(scratch, "shard")
        one = Buckets(num_train=1, num_validation=0, validation=0.0)
        write_cache_file(cache, pieces(), buckets=one, schema=cache_schema(tokenizer.vocab_size))
        documents, _ = read_documents(
            cache.parent, list_slices(cache).values(), vocab_size=tokenizer.vocab_size
        )
        examples, _ = make_examples(
            documents, split=TRAIN, shard=0, config=config, tokenizer=tokenizer
        )
        compression = None if config.compression == "none" else config.compression
        facts = write_shard(shard, examples, schema, format=config.format, compression=compression)
        seconds, cache_bytes = time.process_time() - started, cache.stat().st_size
    times = sum(block.text_bytes for block in blocks) / max(read_bytes, 1)
    return Estimate(
        examples=round(facts.rows * times),
        shard_bytes=round(facts.bytes * times),
        cache_bytes=round(cache_bytes * times),
        cpu_seconds=seconds * times,
    )


def dry_run(
    blocks: Sequence[Block], context: JobContext, tokenizer: Tokenizer, *, workers: int
) -> Iterator[str]:
    """Lines that say what would be done. Nothing is written."""
    there = names_in(context.cache_dir)
    done = sum(context.cache_path(block).name in there for block in blocks)
    text_bytes = sum(block.text_bytes for block in blocks)
    files = len({block.path for block in blocks})
    found = estimate(blocks, context, tokenizer)
    yield (
        f"blocks     {len(blocks):,} of {files:,} sources, {done:,} of them done already; "
        f"about {_size(text_bytes)} of text"
    )
    yield (
        f"shards     {context.buckets.num_train:,} for training and "
        f"{context.buckets.num_validation:,} for validation, {context.config.format}, "
        f"in {context.out_dir}"
    )
    yield f"examples   about {_rounded(found.examples):,}"
    yield (
        f"disk       about {_size(found.shard_bytes)} of shards, and {_size(found.cache_bytes)} in "
        f"{context.cache_dir} meanwhile{_free(context.out_dir)}"
    )
    yield (
        f"time       about {_duration(found.cpu_seconds / workers)} on {workers} "
        f"worker{'s' * (workers > 1)} of this machine"
    )


def _some_texts(blocks: Sequence[Block]) -> Iterator[list[str]]:
    """The beginnings of some blocks; where there are few, more of each."""
    chosen = [blocks[i * len(blocks) // PLACES] for i in range(min(PLACES, len(blocks)))]
    for block in dict.fromkeys(chosen):
        size = 0
        for piece in read_block(block, chunk_bytes=PLACE_BYTES):
            yield piece.texts
            size += sum(map(len, piece.texts))
            if size >= PLACE_BYTES * PLACES // len(chosen):
                break


def _free(folder: Path) -> str:
    if not is_local(folder):
        return ""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return f"; {_size(shutil.disk_usage(existing).free)} are free"


def _size(count: int) -> str:
    """1_234_567 -> 1.2 MB"""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1000:.1f} kB"


def _rounded(count: int) -> int:
    """To two digits: an estimate says no more."""
    step = int(10 ** max(len(str(count)) - 2, 0))
    return round(count / step) * step


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(round(seconds), 1), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
