"""The search for near-duplicates: what is kept of a block, and three steps after all are tokenized.

    NearWriter         block               ->  band keys and words of its documents
    pair_documents     partition of keys   ->  pairs that share a band, by partition of the lower id
    compare_documents  partition of ids    ->  edges: pairs at least as similar as --similarity
    connect_documents  all edges           ->  for each bucket the documents to drop

    0f3a....near    entries (key, following key, document) by partition of the key
    0f3a....words   the words of the documents, one after the other

A partition holds all entries of its share of the keys, so it can be paired without the others. An
entry says where the words of the document are, which only exact comparison reads.

Which documents are dropped follows from the texts alone, not from blocks or partitions. A pair is
compared once, however many bands it shares. Components take at most 150 bytes for each edge; there
are far fewer edges than documents.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, uniform_below
from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.curation.near.search import (
    SHINGLE_WORDS,
    Bands,
    NearSearch,
    band_keys,
    candidate_pairs,
    components,
    document_ids,
    jaccard,
    shingle_sets,
    signatures,
)
from clozeline.pipeline.curation.words import hash_ngrams, hash_words
from clozeline.pipeline.dataset.cache_file import (
    CacheFileWriter,
    damaged,
    read_ends,
    read_index,
    read_parts,
    read_slices,
)

BYTES_PER_PARTITION: Final = 256 << 20  #: of text, which give about 100 MB of entries
BATCH_BYTES: Final = 64 << 20  #: of documents compared at once
HASH: Final = np.dtype([("high", "<u8"), ("low", "<u8")])
WORDS: Final = np.dtype([("file", "<u4"), ("start", "<u8"), ("length", "<u4"), ("crc32", "<u4")])
DOCUMENT: Final = np.dtype([*WORDS.descr, *HASH.descr])
ENTRY: Final = np.dtype([("key", "<u8"), ("following", "<u8"), ("document", DOCUMENT)])
SIDES: Final = ("left", "right")
PAIR: Final = np.dtype(
    [*((f"{side}_id", "<u8") for side in SIDES), *((s, DOCUMENT) for s in SIDES)]
)

Rows = NDArray[Any]  # of a structured dtype


class NearWriter:
    """Writes the two files of a block, chunk by chunk."""

    def __init__(self, near: CacheFileWriter, words: BinaryIO, bands: Bands) -> None:
        self.near, self.words, self.bands = near, words, bands
        self._offset = 0

    def add(self, high: UInt64Array, low: UInt64Array, texts: Sequence[str]) -> None:
        """Add documents; those without a word are like no other."""
        words = hash_words(texts)
        documents = self._write_words(words)
        documents["high"], documents["low"] = high, low
        rows = np.flatnonzero(words.lengths)
        shingles = hash_ngrams(words.take(rows), SHINGLE_WORDS, pad=True)
        entries = np.zeros((len(rows), self.bands.bands), ENTRY)
        if len(rows):
            minima = signatures(shingles, self.bands.bands * self.bands.rows)
            entries["key"] = band_keys(minima, self.bands)
            entries["following"] = np.roll(entries["key"], -1, axis=1)
        entries["document"] = documents[rows, None]
        for partition, part in partitioned(entries.ravel(), "key", self.near.num_buckets):
            self.near.add(partition, part.tobytes())

    def _write_words(self, words: Ragged) -> Rows:
        """Write the words of documents; return where they are, [D], in file 0."""
        data, bounds = memoryview(words.values.astype("<u4").tobytes()), 4 * words.offsets
        spans = np.zeros(len(words), DOCUMENT)
        spans["start"], spans["length"] = self._offset + bounds[:-1], np.diff(bounds)
        spans["crc32"] = [zlib.crc32(data[start:stop]) for start, stop in pairwise(bounds.tolist())]
        self.words.write(data)
        self._offset += len(data)
        return spans


@contextmanager
def write_near_files(
    near: AnyPath, words: AnyPath, *, bands: Bands, partitions: int
) -> Iterator[NearWriter]:
    """A NearWriter of these files, which appear when the block ends."""
    with whole_file(words) as words_file, whole_file(near) as near_file:
        entries = CacheFileWriter(near_file, partitions)
        yield NearWriter(entries, words_file, bands)
        entries.finish(Counts())


def pair_documents(search: NearSearch, partition: int) -> None:
    """Write the pairs of a partition."""
    parts = []
    for number, part in enumerate(read_rows(search.keys_paths, partition, ENTRY)):
        part = part.copy()
        part["document"]["file"] = number
        parts.append(part)
    entries = np.concatenate(parts)
    ids = document_ids(entries["document"]["high"], entries["document"]["low"])
    pairs_of_rows = candidate_pairs(entries["key"], entries["following"], ids)
    pairs = np.zeros(len(pairs_of_rows[0]), PAIR)
    for side, rows in zip(SIDES, pairs_of_rows, strict=True):
        pairs[f"{side}_id"], pairs[side] = ids[rows], entries["document"][rows]
    path, partitions = search.pairs_path(partition), search.partitions
    write_rows(path, partitioned(pairs, "left_id", partitions), partitions=partitions)


def compare_documents(search: NearSearch, partition: int) -> None:
    """Write the edges of a partition."""
    paths = [search.pairs_path(number) for number in range(search.partitions)]
    pairs = np.concatenate(list(read_rows(paths, partition, PAIR)))
    left, right = pairs["left_id"], pairs["right_id"]
    pairs = pairs[np.lexsort((right, left))]
    left, right = pairs["left_id"], pairs["right_id"]
    differs = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    pairs = pairs[np.append(True, differs)[: len(pairs)]]
    batches = _batches(pairs)
    edges = ((0, batch[_similarities(batch, search) >= search.similarity]) for batch in batches)
    write_rows(search.edges_path(partition), edges, partitions=1)


def connect_documents(search: NearSearch) -> None:
    """Write which documents of each bucket are dropped."""
    paths = [search.edges_path(number) for number in range(search.partitions)]
    edges = np.concatenate(list(read_rows(paths, 0, PAIR)))
    ids, kept = components(edges["left_id"], edges["right_id"])
    is_dropped = ids != kept
    counts = Counts()
    counts.read.update(
        near_duplicate_pairs=len(edges), near_duplicate_components=int((~is_dropped).sum())
    )
    _, first = np.unique([edges[f"{side}_id"] for side in SIDES], return_index=True)
    documents = np.concatenate([edges[side] for side in SIDES])[first][is_dropped]
    hashes = np.sort(documents[["high", "low"]].astype(HASH), order=("high", "low"))
    buckets = search.buckets.of(hashes["high"], hashes["low"])
    parts = ((int(bucket), hashes[buckets == bucket]) for bucket in np.unique(buckets))
    write_rows(search.drops_path, parts, partitions=len(search.buckets), counts=counts)


def _similarities(pairs: Rows, search: NearSearch) -> NDArray[np.float64]:
    """The exact similarity of each pair."""
    ids = [pairs[f"{side}_id"] for side in SIDES]
    _, first, numbers = np.unique(ids, return_index=True, return_inverse=True)
    documents = np.concatenate([pairs[side] for side in SIDES])[first]
    words = read_words(search.words_paths, documents)
    sets = shingle_sets(hash_ngrams(words, SHINGLE_WORDS, pad=True))
    return np.array([jaccard(sets[a], sets[b]) for a, b in numbers.reshape(2, -1).T.tolist()])


def _batches(pairs: Rows) -> Iterator[Rows]:
    """Pairs of about BATCH_BYTES of documents; documents of several pairs count each time."""
    sizes = pairs["left"]["length"].astype(np.int64) + pairs["right"]["length"]
    number = np.cumsum(sizes) // BATCH_BYTES
    for batch in np.unique(number):
        yield pairs[number == batch]


def read_words(paths: Sequence[AnyPath], documents: Rows) -> Ragged:
    """The words of each document. Raises CorruptDataError for a damaged file."""
    spans = documents[["file", "start", "length"]].tolist()
    read = read_parts([(paths[file], start, length) for file, start, length in spans])
    parts = []
    for (path, data), crc32 in zip(read, documents["crc32"], strict=True):
        if zlib.crc32(data) != crc32:
            raise damaged(path, "the checksum of a document differs")
        parts.append(np.frombuffer(data, "<u4"))
    words = np.concatenate(parts).astype(np.uint32, copy=False)
    return Ragged(words, offsets_of(list(map(len, parts))))


def partitioned(rows: Rows, by: str, partitions: int) -> Iterator[tuple[int, Rows]]:
    """The rows of each partition of a column of 64-bit hashes."""
    number = uniform_below(rows[by], partitions)
    order = np.argsort(number, kind="stable")
    used, starts = np.unique(number[order], return_index=True)
    return zip(used.tolist(), np.split(rows[order], starts[1:]), strict=bool(len(rows)))


def read_rows(paths: Sequence[AnyPath], partition: int, dtype: np.dtype[Any]) -> Iterator[Rows]:
    """The rows of a partition in each of the cache files."""
    index = read_index(paths, read_ends(paths), range(partition, partition + 1))
    for path, entries in zip(paths, index, strict=True):
        data = b"".join(read_slices([(path, entries[0])], partition))
        yield np.frombuffer(data, dtype)


def write_rows(
    path: AnyPath,
    parts: Iterator[tuple[int, Rows]],
    *,
    partitions: int,
    counts: Counts | None = None,
) -> None:
    """Write rows by partition into a cache file."""
    with whole_file(path) as file:
        writer = CacheFileWriter(file, partitions)
        for partition, rows in parts:
            writer.add(partition, rows.tobytes())
        writer.finish(counts or Counts())
