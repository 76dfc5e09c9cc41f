"""The token cache: a file of tokenized documents for each block, grouped by bucket.

Beam groups references to slices of these files instead of tokens: a gigabyte of text through its
local GroupByKey takes 4 to 6 GB of memory. A file is named by a digest of everything its content
depends on, so a file that exists is complete and is never written again: not after a crash, not
for other pairs or masks, not when a source is added.

    0f3a....tokens.arrow    Arrow IPC; a record batch per bucket and chunk of text, then an empty
                            batch whose metadata holds the block's counts

A slice says where its batches are, so that a shard reads its own bytes of each file and no others:
from a store in ranges, many at a time. Each range has a checksum.
"""

import errno
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.common import ragged
from pipeline.common.counts import Counts
from pipeline.common.errors import CorruptDataError, InputError, StoreError, one_line
from pipeline.common.paths import (
    PARTIAL,
    AnyPath,
    is_local,
    names_in,
    open_mapped,
    remove_folder,
    whole_file,
)
from pipeline.common.ragged import offsets_of
from pipeline.common.stage_timer import StageTimer
from pipeline.common.store import read_ranges, reason_of
from pipeline.dataset.buckets import Buckets
from pipeline.dataset.schema import id_type
from pipeline.examples.bucket_documents import BucketDocuments
from pipeline.tokenization.documents import TokenizedDocuments

# Increase it when the same block would give another file: extraction, sentences, this layout.
CACHE_VERSION = 6

COUNTS, SPANS = b"clozeline.counts", b"clozeline.spans"
SUFFIX = ".tokens.arrow"
RECORD_SUFFIX = ".shard.json"  # of the records of finished shards, which are kept beside


class Span(NamedTuple):
    """The bytes of a batch in a cache file."""

    start: int
    length: int
    crc32: int


@dataclass(frozen=True)
class CacheSlice:
    """The batches of a cache file that belong to one bucket; all that Beam moves around."""

    file: str
    spans: tuple[Span, ...]
    repeat: int = 1  #: how many times as many training examples its documents make


def cache_file_name(*parts: object) -> str:
    """The name of a cache file, from everything its content depends on."""
    text = json.dumps([CACHE_VERSION, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() + SUFFIX


def cache_schema(vocab_size: int) -> pa.Schema:
    """The columns of a cache file."""
    ids, counts = id_type(vocab_size), pa.uint32()
    lists = {"sentence_lengths": counts, "paragraph_lengths": counts, "input_ids": ids}
    return pa.schema(
        [pa.field(name, pa.uint64(), nullable=False) for name in ("high", "low")]
        + [
            pa.field(name, pa.list_(pa.field("item", kind, nullable=False)), nullable=False)
            for name, kind in lists.items()
        ]
    )


def write_cache_file(
    path: AnyPath,
    chunks: Iterable[tuple[TokenizedDocuments, Counts]],
    *,
    buckets: Buckets,
    schema: pa.Schema,
) -> None:
    """Write a cache file chunk by chunk; only one chunk is in memory at a time."""
    total, timer = Counts(), StageTimer()
    spans: list[tuple[int, Span]] = []
    with whole_file(path) as file, pa.ipc.new_file(file, schema) as writer:
        for documents, counts in chunks:
            total.add(counts)
            with timer.stage("token cache"):
                for bucket, batch in _by_bucket(documents, buckets, schema):
                    written = batch.serialize()  # as the writer does, after what it has to say
                    writer.write_batch(batch)
                    start = file.tell() - written.size
                    spans.append((bucket, Span(start, written.size, zlib.crc32(written))))
        total.seconds.update(timer.seconds)
        metadata = {COUNTS: total.to_json(), SPANS: json.dumps(spans)}
        last = pa.RecordBatch.from_pylist([], schema=schema)
        writer.write_batch(last, custom_metadata=metadata)


def clear_cache(folder: AnyPath) -> None:
    """Remove the files of a token cache, and the folder if nothing else is in it."""
    for name in names_in(folder):
        if name.endswith((SUFFIX, RECORD_SUFFIX)) or PARTIAL.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
    if not names_in(folder) and not (is_local(folder) and folder.is_symlink()):
        remove_folder(folder)


def list_slices(path: AnyPath, *, repeat: int = 1) -> dict[int, CacheSlice]:
    """The slice of each bucket that has documents in the cache file."""
    spans = defaultdict(list)
    for bucket, span in json.loads(_metadata(path)[SPANS]):
        spans[bucket].append(Span(*span))
    return {bucket: CacheSlice(path.name, tuple(found), repeat) for bucket, found in spans.items()}


def read_counts(path: AnyPath) -> Counts:
    """What the worker counted when it tokenized the block."""
    return Counts.from_json(_metadata(path)[COUNTS])


def read_documents(
    cache_dir: AnyPath, slices: Iterable[CacheSlice], vocab_size: int
) -> tuple[BucketDocuments, int]:
    """The documents of a bucket in the order of their hashes, and the number of duplicates.

    Raises CorruptDataError for a cache file that is missing or damaged.
    """
    schema = cache_schema(vocab_size)
    parts = sorted(set(slices), key=lambda part: part.file)  # GroupByKey promises no order
    batches = list(_read_batches(cache_dir, parts, schema))
    table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
    rows = _from_table(table)
    order = np.lexsort((rows.low, rows.high))
    high, low = rows.high[order], rows.low[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return _documents(rows.take(order[is_first])), int((~is_first).sum())


def _read_batches(
    cache_dir: AnyPath, parts: Iterable[CacheSlice], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    spans = [(cache_dir / part.file, span) for part in parts for span in part.spans]
    ranges = [(path, span.start, span.length) for path, span in spans]
    read = read_ranges(ranges)
    for path, span in spans:
        with _named(path):
            data = next(read)
            if zlib.crc32(data) != span.crc32:
                raise pa.ArrowInvalid("its checksum differs")
            yield pa.ipc.read_record_batch(data, schema)


def _documents(rows: TokenizedDocuments) -> BucketDocuments:
    paragraphs = rows.paragraph_lengths.values.astype(np.int64)
    return BucketDocuments(
        ids=rows.input_ids.values,
        sentence_offsets=offsets_of(rows.sentence_lengths.values),
        document_offsets=rows.sentence_lengths.offsets,
        paragraphs=np.repeat(np.arange(len(paragraphs)), paragraphs),
        hashes=rows.high,
    )


def _by_bucket(
    documents: TokenizedDocuments, buckets: Buckets, schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    bucket_of = buckets.of(documents.high, documents.low)
    order = np.argsort(bucket_of, kind="stable")
    ends = np.searchsorted(bucket_of[order], np.arange(len(buckets) + 1))
    for bucket, (start, stop) in enumerate(pairwise(ends)):
        if stop > start:
            yield bucket, ragged.to_record_batch(documents.take(order[start:stop]), schema)


def _from_table(table: pa.Table) -> TokenizedDocuments:
    return TokenizedDocuments(
        table["high"].to_numpy(),
        table["low"].to_numpy(),
        ragged.from_arrow(table["sentence_lengths"]),
        ragged.from_arrow(table["paragraph_lengths"]),
        ragged.from_arrow(table["input_ids"]),
    )


def _metadata(path: AnyPath) -> dict[bytes, bytes]:
    with _open(path) as reader:
        last = reader.num_record_batches - 1
        return dict(reader.get_batch_with_custom_metadata(last)[1])


@contextmanager
def _open(path: AnyPath) -> Iterator[pa.RecordBatchFileReader]:
    with _named(path):
        yield pa.ipc.open_file(open_mapped(path))


@contextmanager
def _named(path: AnyPath) -> Iterator[None]:
    """Errors say which file cannot be read, and what to do."""
    try:
        yield
    except MemoryError:  # Arrow's, too
        raise
    except (pa.ArrowException, OSError) as error:
        if not isinstance(error, pa.ArrowException) and not is_local(path):
            raise StoreError(
                f"{path} cannot be used in its store ({reason_of(error)}); fix this and rerun the "
                "command."
            ) from error
        if getattr(error, "errno", None) not in (None, errno.ENOENT):
            raise InputError(f"{path} cannot be read ({one_line(error)}); fix this.") from error
        raise CorruptDataError(
            f"{path} is damaged ({error}); delete it and rerun the command."
        ) from error
