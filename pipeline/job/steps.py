"""The three steps of the job, without Beam.

    tokenize_block    block               ->  token cache file, slices by bucket
    build_shard       slices of a bucket  ->  shard, ShardRecord
    finish_dataset    all ShardRecords    ->  manifest

Each step writes its file under its final name, so that a finished step is recognized by that name
and not repeated, by whatever process.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.common.counts import Counts
from pipeline.common.errors import InputError, JobFailedError
from pipeline.common.paths import whole_file
from pipeline.common.stage_timer import StageTimer
from pipeline.config import DataConfig
from pipeline.dataset.buckets import TRAIN, Buckets
from pipeline.dataset.manifest import (
    JOB,
    LENGTH_BIN,
    REJECTED,
    TOKENIZER,
    Manifest,
    ShardEntry,
    write_manifest,
)
from pipeline.dataset.schema import Examples, example_schema
from pipeline.dataset.shards import file_sha256, write_shard
from pipeline.examples.examples import SLAB, make_examples
from pipeline.job.memory import process_peak, release_memory
from pipeline.job.token_cache import (
    CacheSlice,
    cache_file_name,
    cache_schema,
    list_slices,
    read_counts,
    read_documents,
    write_cache_file,
)
from pipeline.sources.block import Block
from pipeline.sources.formats import read_block
from pipeline.tokenization.documents import TokenizedDocuments, tokenize_documents
from pipeline.tokenization.fast_wordpiece import ColumnTokenizer
from pipeline.tokenization.sentences import PunktData, SentenceSplitter
from pipeline.tokenization.tokenizer import load_tokenizer

# Goes up whenever the same documents would give another shard: pairs, masks, the shard's layout.
EXAMPLES_VERSION = 1

# Noted and kept, not dropped.
NOTED = ("invalid_utf8", "nul")


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What every worker needs to know; plain values, so that it can be sent to any worker."""

    out_dir: Path
    cache_dir: Path
    config: DataConfig
    buckets: Buckets
    tokenizer_digest: str
    vocab_size: int
    sources_digest: str

    def cache_path(self, block: Block) -> Path:
        """The block's token cache file, once it is tokenized."""
        name = cache_file_name(
            block.identity,
            self.tokenizer_digest,
            self.buckets,
            self.config.min_characters,
            block.text_columns,
        )
        return self.cache_dir / name

    def shard_path(self, bucket: int) -> Path:
        """The bucket's shard, once it is built."""
        return self.out_dir / self.buckets.shard_name(bucket, self.config.format)


@dataclass(frozen=True)
class ShardRecord:
    """What is known of a finished shard, and of the blocks if it is the first one."""

    bucket: int
    entry: ShardEntry
    counts: Counts
    token_counts: list[int]
    peak_memory: int  #: bytes, of the process that made it


class Steps:
    """The steps of one job in one worker; holds the tokenizer and its memo."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.tokenizer = load_tokenizer(context.out_dir / TOKENIZER)
        if self.tokenizer.digest != context.tokenizer_digest:
            raise InputError(
                f"{context.out_dir / TOKENIZER} changed while the job was running; "
                "rerun the command."
            )

    @cached_property
    def _splitter(self) -> SentenceSplitter:
        if self.tokenizer.punkt is None:
            raise InputError(
                f"{self.context.out_dir / TOKENIZER} has no Punkt parameters; make the tokenizer "
                "with `clozeline tokenizer`."
            )
        return SentenceSplitter(PunktData.from_json(self.tokenizer.punkt))

    @cached_property
    def _columns(self) -> ColumnTokenizer:
        return ColumnTokenizer(self.tokenizer)

    def tokenize_block(self, block: Block) -> Iterator[tuple[int, CacheSlice]]:
        """Write the block's token cache file unless it exists; yield its slice of each bucket.

        Every block yields a slice for bucket 0, which adds up the blocks' counts, and block 0 one
        for every bucket, since every bucket becomes a shard, even an empty one.
        """
        path = self.context.cache_path(block)
        if not path.exists():
            schema = cache_schema(self.tokenizer.vocab_size)
            write_cache_file(
                path, self._tokenized(block), buckets=self.context.buckets, schema=schema
            )
        slices = list_slices(path)
        nothing = CacheSlice(path.name, ())
        required = range(len(self.context.buckets)) if block.index == 0 else range(1)
        for bucket in sorted({*slices, *required}):
            yield bucket, slices.get(bucket, nothing)

    def build_shard(self, bucket: int, slices: Iterable[CacheSlice]) -> ShardRecord:
        """Write the bucket's shard, unless it is there and whole."""
        parts = sorted(set(slices), key=lambda part: part.file)
        record_path = self.context.cache_dir / self._record_name(bucket, parts)
        shard_path = self.context.shard_path(bucket)
        if record := _finished(record_path, shard_path):
            return record
        release_memory()
        record = self._write_shard(shard_path, bucket, parts)
        with whole_file(record_path) as file:
            file.write(_record_to_json(record).encode())
        return record

    def _tokenized(self, block: Block) -> Iterator[tuple[TokenizedDocuments, Counts]]:
        config = self.context.config
        watch = StageTimer()
        for piece in watch.each("read", read_block(block)):
            documents, counts = tokenize_documents(
                piece.texts,
                splitter=self._splitter,
                tokenizer=self._columns,
                min_characters=config.min_characters,
            )
            for reason, number in piece.counts.items():
                (counts.read if reason in NOTED else counts.dropped)[reason] += number
            counts.rejected += [asdict(rejected) for rejected in piece.rejected]
            counts.seconds.update(watch.seconds)
            watch.seconds.clear()
            yield documents, counts

    def _record_name(self, bucket: int, slices: list[CacheSlice]) -> str:
        context = self.context
        config = context.config.to_dict()
        del config["max_rejected"]  # who raises it after a failed job waits for no shard again
        facts = [
            EXAMPLES_VERSION,
            config,
            context.tokenizer_digest,
            asdict(context.buckets),
            bucket,
        ]
        text = json.dumps([*facts, [part.file for part in slices]])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() + ".shard.json"

    def _write_shard(self, path: Path, bucket: int, slices: list[CacheSlice]) -> ShardRecord:
        config, tokenizer = self.context.config, self.tokenizer
        split, index = self.context.buckets.split_of(bucket)
        watch = StageTimer()
        with watch.stage("token cache"):
            documents, duplicates = read_documents(
                self.context.cache_dir, slices, tokenizer.vocab_size
            )
        examples, dropped = make_examples(
            documents, split=split, shard=index, config=config, tokenizer=tokenizer, watch=watch
        )
        with watch.stage("shards"):
            facts = write_shard(
                path,
                examples,
                example_schema(tokenizer.vocab_size, tokenizer.digest),
                format=config.format,
                compression=None if config.compression == "none" else config.compression,
            )
        lengths = np.bincount((examples.input_ids.lengths - 1) // LENGTH_BIN)
        entry = ShardEntry(
            name=path.name, split=split, length_histogram=lengths.tolist(), **asdict(facts)
        )
        with watch.stage("counting"):
            tokens = self._count_tokens(examples) if split == TRAIN else []
        dropped["duplicate_document"] += duplicates
        counts = Counts(dropped=dropped, seconds=watch.seconds)
        if bucket == 0:
            for part in slices:
                counts.add(read_counts(self.context.cache_dir / part.file))
        return ShardRecord(bucket, entry, counts, tokens, process_peak())

    def _count_tokens(self, examples: Examples) -> list[int]:
        """How often each token stands in the rows before masking, special tokens left out."""
        size = self.tokenizer.vocab_size
        counts = np.zeros(size, dtype=np.int64)
        for start in range(0, len(examples), SLAB):  # counting takes 8 bytes a token
            rows = examples.take(np.arange(start, min(start + SLAB, len(examples))))
            counts += np.bincount(rows.unmasked().input_ids.values, minlength=size)
        counts[self.tokenizer.is_special] = 0
        return counts.tolist()


def finish_dataset(records: Iterable[ShardRecord], *, context: JobContext) -> Manifest:
    """The last step: check what was rejected, then write the manifest.

    Raises JobFailedError if too many documents were rejected, and InputError if the sources give no
    example; then there is no manifest.
    """
    ordered = sorted(records, key=lambda record: record.bucket)
    assert [record.bucket for record in ordered] == list(range(len(context.buckets)))
    total = Counts()
    for record in ordered:
        total.add(record.counts)
    counted = np.array([r.token_counts for r in ordered if r.token_counts], dtype=np.int64)
    manifest = Manifest(
        config=context.config,
        tokenizer_digest=context.tokenizer_digest,
        vocab_size=context.vocab_size,
        sources_digest=context.sources_digest,
        shards=[record.entry for record in ordered],
        counts=_sorted(total.read) | {"rejected": len(total.rejected)},
        dropped=_sorted(total.dropped),
        token_counts=counted.sum(axis=0).tolist(),
    )
    _write_rejected(context.out_dir / REJECTED, total.rejected)
    _check_rejected(total, context)
    if not manifest.num_examples(TRAIN):
        raise InputError(_nothing_made(manifest))
    _write_job(context.out_dir / JOB, total, ordered)
    write_manifest(context.out_dir, manifest)
    return manifest


def _write_job(path: Path, total: Counts, records: list[ShardRecord]) -> None:
    """What only the workers know; the process that began the job adds the rest."""
    facts = {
        "stages": {name: round(seconds, 3) for name, seconds in total.seconds.items()},
        "peak_worker_megabytes": max(record.peak_memory for record in records) // 1_000_000,
    }
    with whole_file(path) as file:
        file.write(json.dumps(facts).encode())


def _finished(record_path: Path, shard_path: Path) -> ShardRecord | None:
    """The record of a shard that an earlier process finished, if its bytes have not changed."""
    if not (record_path.exists() and shard_path.exists()):
        return None
    facts = json.loads(record_path.read_bytes())
    entry = ShardEntry(**facts["entry"])
    if file_sha256(shard_path) != entry.sha256:
        return None
    counts = Counts.from_json(facts["counts"])
    return ShardRecord(facts["bucket"], entry, counts, facts["token_counts"], facts["peak_memory"])


def _record_to_json(record: ShardRecord) -> str:
    facts = {
        "bucket": record.bucket,
        "entry": asdict(record.entry),
        "counts": record.counts.to_json(),
        "token_counts": record.token_counts,
        "peak_memory": record.peak_memory,
    }
    return json.dumps(facts)


def _write_rejected(path: Path, rejected: list[dict[str, str]]) -> None:
    path.unlink(missing_ok=True)
    if rejected:
        lines = sorted(json.dumps(entry, ensure_ascii=False) for entry in rejected)
        with whole_file(path) as file:
            file.write(("\n".join(lines) + "\n").encode())


def _check_rejected(total: Counts, context: JobContext) -> None:
    seen = len(total.rejected) + total.read["documents"]
    allowed = math.ceil(seen * context.config.max_rejected)
    if len(total.rejected) > allowed:
        first = total.rejected[0]
        raise JobFailedError(
            f"{len(total.rejected)} of {seen} documents were rejected, more than the {allowed} "
            f"that --max-rejected {context.config.max_rejected} allows; the first is "
            f"{first['where']} ({first['reason']}), all are in {context.out_dir / REJECTED}. "
            "Fix the source or allow more."
        )


def _nothing_made(manifest: Manifest) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest.dropped.items())
    return (
        f"no example could be made from {manifest.counts.get('documents', 0):,} documents "
        f"(left out: {reasons or 'nothing'}). Give more text, fewer --num-shards, a smaller "
        "--min-characters or --validation, or --pairs none."
    )


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counter.items()) if count}
