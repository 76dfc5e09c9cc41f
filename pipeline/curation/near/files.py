"""What the search for near-duplicates keeps of a block: its band keys, its words, its beginnings.

    0f3a....near    entries (key, following key, id, span) by partition of the key
    0f3a....words   documents, one after the other: header, words, the first 500 characters; each
                    has a checksum

A partition holds all entries of its share of the keys, so it can be paired without the others. An
entry says where the document is, which only exact comparison and samples read.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, uniform_below
from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.curation.near.search import (
    SHINGLE_WORDS,
    Bands,
    band_keys,
    document_ids,
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

BYTES_PER_PARTITION: Final = 256 << 20  #: of text, which give about 80 MB of entries
HEAD_CHARACTERS: Final = 500  #: of a document, to show
HEADER: Final = struct.Struct("<QQIII")  # hash, words, bytes of the beginning, crc32 of all
SPAN: Final = np.dtype([("file", "<u4"), ("start", "<u8"), ("length", "<u4")])
HASH: Final = np.dtype([("high", "<u8"), ("low", "<u8")])
ENTRY: Final = np.dtype([("key", "<u8"), ("following", "<u8"), ("id", "<u8"), ("at", SPAN)])

Rows = NDArray[Any]  # of a structured dtype


class NearDocument(NamedTuple):
    high: int
    low: int
    words: NDArray[np.uint32]
    head: str

    @property
    def hash(self) -> str:
        return f"{self.high:016x}{self.low:016x}"


class NearWriter:
    """Writes the two files of a block, chunk by chunk."""

    def __init__(self, near: CacheFileWriter, words: BinaryIO, bands: Bands) -> None:
        self.near, self.words, self.bands = near, words, bands
        self._offset = 0

    def add(self, high: UInt64Array, low: UInt64Array, texts: Sequence[str]) -> None:
        """Add documents; those without a word are like no other."""
        words = hash_words(texts)
        rows = np.flatnonzero(words.lengths)
        shingles = hash_ngrams(words.take(rows), SHINGLE_WORDS, pad=True)
        entries = np.zeros((len(rows), self.bands.bands), ENTRY)
        if len(rows):
            minima = signatures(shingles, self.bands.bands * self.bands.rows)
            entries["key"] = band_keys(minima, self.bands)
            entries["following"] = np.roll(entries["key"], -1, axis=1)
        entries["id"] = document_ids(high, low)[rows, None]
        entries["at"] = self._write_words(high, low, texts, words)[rows, None]
        for partition, part in partitioned(entries.ravel(), "key", self.near.num_buckets):
            self.near.add(partition, part.tobytes())

    def _write_words(
        self, high: UInt64Array, low: UInt64Array, texts: Sequence[str], words: Ragged
    ) -> Rows:
        """Write the documents; return their spans, [D], in file 0."""
        view, bounds = words.values.astype("<u4"), words.offsets.tolist()
        lengths = []
        for number, document in enumerate(zip(high.tolist(), low.tolist(), texts, strict=True)):
            own = view[bounds[number] : bounds[number + 1]]
            head = document[2][:HEAD_CHARACTERS].encode()
            content = own.tobytes() + head
            header = (*document[:2], len(own), len(head))
            self.words.write(HEADER.pack(*header, _crc32(header, content)))
            self.words.write(content)
            lengths.append(HEADER.size + len(content))
        spans = np.zeros(len(lengths), SPAN)
        spans["start"], spans["length"] = self._offset + offsets_of(lengths)[:-1], lengths
        self._offset += sum(lengths)
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


def partitioned(rows: Rows, by: str, partitions: int) -> Iterator[tuple[int, Rows]]:
    """The rows of each partition of a column of 64-bit hashes."""
    number = uniform_below(rows[by], partitions)
    rows = rows[np.argsort(number, kind="stable")]
    found, counts = np.unique(number, return_counts=True)
    for partition, start, count in zip(
        found.tolist(), offsets_of(counts).tolist(), counts.tolist(), strict=False
    ):
        yield partition, rows[start : start + count]


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


def read_documents(files: Sequence[AnyPath], spans: Rows) -> list[NearDocument]:
    """The documents at these spans. Raises CorruptDataError for a damaged file."""
    ranges = [(files[span["file"]], int(span["start"]), int(span["length"])) for span in spans]
    return [_document(path, memoryview(data)) for path, data in read_parts(ranges)]


def _document(path: AnyPath, data: Any) -> NearDocument:
    if len(data) >= HEADER.size:
        *values, crc32 = HEADER.unpack_from(data)
        high, low, count, head_bytes = values
        content = data[HEADER.size :]
        if len(content) == 4 * count + head_bytes and crc32 == _crc32(values, content):
            words = np.frombuffer(content[: 4 * count], "<u4").astype(np.uint32)
            return NearDocument(high, low, words, bytes(content[4 * count :]).decode())
    raise damaged(path, "the checksum of a document differs")


def _crc32(values: Sequence[int], content: Any) -> int:
    """The checksum of a document's header, without the checksum itself, and content."""
    return zlib.crc32(content, zlib.crc32(struct.pack("<QQII", *values)))
