"""The token cache: a file of tokenized documents for each block, grouped by bucket.

Beam moves the names of these files instead of tokens: a gigabyte of text through its local
GroupByKey takes 4 to 6 GB of memory. A file is named by a digest of everything its content depends
on, so a file that exists is complete and is never written again: not after a crash, not for other
pairs or masks, not when a source is added.

    0f3a....tokens    the documents of a block
    77c1....merged    the documents of several blocks, merged when there are so many blocks that a
                      shard would make too many requests

A bucket's documents are stored as pieces, one after the other, each as counts and then columns.

    3 documents, 40 sentences, 12 paragraphs, 800 tokens
    high [3]  low [3]  sentences in each [3]  paragraphs in each [3]
    tokens in each sentence [40]  sentences in each paragraph [12]  ids [800]
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import mul
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.paths import (
    PARTIAL,
    AnyPath,
    is_local,
    names_in,
    remove_folder,
    remove_named,
    whole_file,
)
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.common.stage_timer import StageTimer
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.schema import id_type
from clozeline.pipeline.examples.bucket_documents import BucketDocuments
from clozeline.pipeline.job.cache_file import (
    ENTRY,
    CacheFileEnd,
    CacheFileWriter,
    Entries,
    read_counts,
    read_ends,
    read_index,
    read_runs,
    read_slices,
)
from clozeline.pipeline.job.near_files import (
    EXCLUDED_SUFFIX,
    NEAR_SUFFIX,
    STEP_SUFFIXES,
    WORDS_SUFFIX,
    Rows,
)
from clozeline.pipeline.tokenization.documents import TokenizedDocuments

# Increase it when the same block would give another file: extraction, sentences, this layout.
CACHE_VERSION = 10

SUFFIX = ".tokens"
MERGED_SUFFIX = ".merged"
RECORD_SUFFIX = ".shard.json"  # records of finished shards, kept in the same folder
MAX_FILES: Final = 500  #: most files a shard reads; if there are more, they are merged
INDEX_BYTES: Final = 64 << 20  #: memory for the part of the indexes that a process holds

HEADER: Final = struct.Struct("<4I")  # documents, sentences, paragraphs, tokens of a piece
#: The columns of a piece before the ids: which header field is their length, and their dtype.
COLUMNS: Final = ((0, "<u8"), (0, "<u8"), (0, "<u4"), (0, "<u4"), (1, "<u4"), (2, "<u4"))


class CacheInput(NamedTuple):
    """A file of the token cache that a job reads."""

    name: str
    repeat: int = 1  #: its documents make this many times as many training examples


class FileGroup(NamedTuple):
    """Files of blocks that are merged into one, if there is more than one."""

    names: tuple[str, ...]
    repeat: int

    @property
    def result(self) -> CacheInput:
        """The merged file, or the only one."""
        alone = len(self.names) == 1
        return CacheInput(self.names[0] if alone else merged_name(self.names), self.repeat)


def cache_file_name(*parts: object) -> str:
    """The name of a cache file, from everything its content depends on."""
    return digest_of(parts) + SUFFIX


def merged_name(names: Sequence[str]) -> str:
    """The name of the file that the files of these names are merged into."""
    return digest_of(sorted(names)) + MERGED_SUFFIX


def group_files(files: Iterable[CacheInput]) -> list[FileGroup]:
    """Groups of neighbouring files: at most MAX_FILES, plus one for each different `repeat`.

    Group sizes are powers of two, so that files added at the end leave most groups as they are.
    """
    by_repeat: dict[int, list[str]] = {}
    for name, repeat in dict.fromkeys(files):
        by_repeat.setdefault(repeat, []).append(name)
    number, size = sum(map(len, by_repeat.values())), 1
    while size * MAX_FILES < number:
        size *= 2
    return [
        FileGroup(tuple(names[start : start + size]), repeat)
        for repeat, names in by_repeat.items()
        for start in range(0, len(names), size)
    ]


def write_cache_file(
    path: AnyPath,
    chunks: Iterable[tuple[TokenizedDocuments, Counts]],
    *,
    buckets: Buckets,
    vocab_size: int,
) -> Counts:
    """Write the documents of a block, chunk by chunk; return the sum of their counts."""
    total, timer = Counts(), StageTimer()
    with whole_file(path) as file:
        writer = CacheFileWriter(file, len(buckets))
        for documents, counts in chunks:
            total.add(counts)
            with timer.stage("token cache"):
                for bucket, piece in _pieces(documents, buckets, _id_dtype(vocab_size)):
                    writer.add(bucket, piece)
        total.seconds.update(timer.seconds)
        writer.finish(total)
    return total


def merge_cache_files(folder: AnyPath, names: Sequence[str], *, num_buckets: int) -> None:
    """Write the file that these are merged into, unless it exists."""
    path = folder / merged_name(names)
    if path.exists():
        return
    total = Counts()
    with whole_file(path) as file:
        writer = CacheFileWriter(file, num_buckets)
        for name in names:
            for bucket, piece in read_runs(folder / name, num_buckets):
                writer.add(bucket, piece)
        for counts in read_counts([folder / name for name in names]):
            total.add(counts)
        writer.finish(total)


def clear_cache(folder: AnyPath) -> None:
    """Remove the files of a token cache, and the folder if nothing else is in it."""
    endings = (
        *(SUFFIX, MERGED_SUFFIX, RECORD_SUFFIX),
        *(EXCLUDED_SUFFIX, NEAR_SUFFIX, WORDS_SUFFIX, *STEP_SUFFIXES),
    )
    ours = [name for name in names_in(folder) if name.endswith(endings) or PARTIAL.fullmatch(name)]
    remove_named(folder, ours)
    if not names_in(folder) and not (is_local(folder) and folder.is_symlink()):
        remove_folder(folder)


class TokenCache:
    """The files that a job reads, as its shards see them: the documents of a bucket."""

    def __init__(
        self, folder: AnyPath, inputs: Iterable[CacheInput], *, num_buckets: int, vocab_size: int
    ) -> None:
        self.inputs = sorted(inputs)
        self.num_buckets, self.vocab_size = num_buckets, vocab_size
        self._paths = [folder / part.name for part in self.inputs]
        self._indexed = range(0)
        self._index: list[Entries] = []

    def inputs_of(self, bucket: int) -> list[CacheInput]:
        """The inputs that have documents of the bucket."""
        return [part for part, _, entries in self._entries(bucket) if entries["length"].any()]

    def counts(self) -> Counts:
        """What was counted when all blocks were tokenized."""
        total = Counts()
        for counts in read_counts(self._paths):
            total.add(counts)
        return total

    def documents(
        self,
        bucket: int,
        *,
        above_repeat: int = 0,
        copies: bool = False,
        drops: Rows | None = None,
    ) -> tuple[BucketDocuments, int]:
        """The bucket's documents in the order of their hashes, and the number of duplicates.

        Only from inputs whose `repeat` is above `above_repeat`; with all `copies`, and without the
        `drops`, which have sorted HASHes. Raises CorruptDataError for a file that is missing or
        damaged.
        """
        chosen = [
            (path, entries)
            for part, path, entries in self._entries(bucket)
            if part.repeat > above_repeat
        ]
        rows = _from_pieces(read_slices(chosen, bucket), _id_dtype(self.vocab_size))
        order = np.lexsort((rows.low, rows.high))
        high, low = rows.high[order], rows.low[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = copies | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        duplicates, keep = int((~is_first).sum()), is_first
        if drops is not None:
            keep = is_first & ~_among(high, low, drops)
        return _documents(rows.take(order[keep])), duplicates

    @cached_property
    def _ends(self) -> list[CacheFileEnd]:
        return read_ends(self._paths)

    def _entries(self, bucket: int) -> Iterator[tuple[CacheInput, AnyPath, Entries]]:
        """Each input, its path, and where it has the bucket's slices, [runs]."""
        if bucket not in self._indexed:
            per_bucket = ENTRY.itemsize * sum(end.runs for end in self._ends)
            size = max(1, INDEX_BYTES // max(1, per_bucket))
            first = bucket // size * size
            indexed = range(first, min(first + size, self.num_buckets))
            self._index = read_index(self._paths, self._ends, indexed)
            self._indexed = indexed
        row = bucket - self._indexed.start
        rows = (entries[row] for entries in self._index)
        return zip(self.inputs, self._paths, rows, strict=True)


def _among(high: UInt64Array, low: UInt64Array, drops: Rows) -> NDArray[np.bool_]:
    """Whether each hash, [D], is one of the drops."""
    found = np.isin(high, drops["high"])
    rows = np.flatnonzero(found)
    pairs = set(drops.tolist())
    found[rows] = [
        pair in pairs for pair in zip(high[rows].tolist(), low[rows].tolist(), strict=True)
    ]
    return found


def digest_of(parts: Iterable[object]) -> str:
    text = json.dumps([CACHE_VERSION, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _id_dtype(vocab_size: int) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(id_type(vocab_size).to_pandas_dtype())
    return dtype.newbyteorder("<")


def _pieces(
    documents: TokenizedDocuments, buckets: Buckets, id_dtype: np.dtype[Any]
) -> Iterator[tuple[int, bytes]]:
    """The piece of each bucket that has documents."""
    bucket_of = buckets.of(documents.high, documents.low)
    rows = documents.take(np.argsort(bucket_of, kind="stable"))
    found, sizes = np.unique(bucket_of, return_counts=True)
    cuts = offsets_of(sizes)  # in documents
    columns: list[tuple[NDArray[np.int64], NDArray[Any], Any]] = [
        (cuts, rows.high, "<u8"),
        (cuts, rows.low, "<u8"),
        (cuts, rows.sentence_lengths.lengths, "<u4"),
        (cuts, rows.paragraph_lengths.lengths, "<u4"),
        (rows.sentence_lengths.offsets[cuts], rows.sentence_lengths.values, "<u4"),
        (rows.paragraph_lengths.offsets[cuts], rows.paragraph_lengths.values, "<u4"),
        (rows.input_ids.offsets[cuts], rows.input_ids.values, id_dtype),
    ]
    counts = np.diff([cuts, *(bounds for bounds, _, _ in columns[4:])])  # [4, buckets]
    headers = counts.T.tolist()
    parts = [_cut(values.astype(dtype), bounds) for bounds, values, dtype in columns]
    for bucket, header, *of_columns in zip(found.tolist(), headers, *parts, strict=True):
        yield bucket, b"".join((HEADER.pack(*header), *of_columns))


def _cut(values: NDArray[Any], bounds: NDArray[np.int64]) -> Iterator[memoryview]:
    """The bytes of values[bounds[i] : bounds[i + 1]], for each i."""
    view = memoryview(values.tobytes())
    for start, stop in pairwise((bounds * values.itemsize).tolist()):
        yield view[start:stop]


def _from_pieces(slices: Iterable[Any], id_dtype: np.dtype[Any]) -> TokenizedDocuments:
    data, headers, offset = b"".join(slices), [], 0
    types = [np.dtype(dtype) for _, dtype in COLUMNS] + [id_dtype]
    counted = [which for which, _ in COLUMNS] + [3]
    sizes = [0, 0, 0, 0]  # bytes for each document, sentence, paragraph and token
    for which, dtype in zip(counted, types, strict=True):
        sizes[which] += dtype.itemsize
    while offset < len(data):
        header = HEADER.unpack_from(data, offset)
        headers.append(header)
        offset += HEADER.size + sum(map(mul, sizes, header))
    counts = np.array(headers, dtype=np.int64).reshape(-1, 4)[:, counted]
    lengths = np.insert(counts * [dtype.itemsize for dtype in types], 0, HEADER.size, axis=1)
    parts = Ragged(np.frombuffer(data, np.uint8), offsets_of(lengths.ravel()))
    columns = [
        parts.take(np.arange(number, len(parts), 1 + len(types))).values.view(dtype)
        for number, dtype in enumerate(types, 1)
    ]
    high, low, sentences, paragraphs, tokens_in, sentences_in, ids = columns
    sentence_offsets = offsets_of(sentences)
    return TokenizedDocuments(
        high,
        low,
        Ragged(tokens_in, sentence_offsets),
        Ragged(sentences_in, offsets_of(paragraphs)),
        Ragged(ids, offsets_of(tokens_in)[sentence_offsets]),
    )


def _documents(rows: TokenizedDocuments) -> BucketDocuments:
    paragraphs = rows.paragraph_lengths.values.astype(np.int64)
    return BucketDocuments(
        ids=rows.input_ids.values,
        sentence_offsets=offsets_of(rows.sentence_lengths.values),
        document_offsets=rows.sentence_lengths.offsets,
        paragraphs=np.repeat(np.arange(len(paragraphs)), paragraphs),
        hashes=rows.high,
    )
