"""A cache file: the bytes of each bucket, and where they are.

    | bucket 0 | bucket 1 | ... | the same for the next run | ... | index | counts | end |

    index    a row per bucket, an entry per run: start, length and checksum of a slice
    counts   JSON, what was counted when the documents were tokenized
    end      where index and counts are

So a shard reads only its own bytes of each file: from a store in ranges, many at a time. A writer
holds one run in memory. Runs are as large as that allows, since a shard makes a request for each.
"""

import errno
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import DamagedFileError, unreadable
from clozeline.pipeline.common.json_files import json_digest
from clozeline.pipeline.common.paths import AnyPath, read_ranges
from clozeline.pipeline.common.ragged import offsets_of

# Increase it when the same block would give another file: extraction, sentences, this layout.
CACHE_VERSION = 15

RUN_BYTES: Final = 256 << 20
MAGIC: Final = b"CLZcache"
#: Where a slice is. An empty slice has a checksum, too, so an all-zero entry is damage.
ENTRY: Final = np.dtype([("start", "<u8"), ("length", "<u4"), ("crc32", "<u4")])
END: Final = struct.Struct("<5QI8s")

Entries = NDArray[Any]  # of ENTRY


def digest_of(parts: Iterable[object]) -> str:
    """The name of a file, without its suffix, from everything its content depends on."""
    return json_digest([CACHE_VERSION, *map(str, parts)])


class CacheFileEnd(NamedTuple):
    """The last bytes of a cache file, which say where the rest is."""

    index_start: int
    counts_start: int
    counts_bytes: int
    counts_crc32: int
    runs: int

    def to_bytes(self) -> bytes:
        """`END.size` bytes with a checksum."""
        return END.pack(*self, zlib.crc32(struct.pack("<5Q", *self)), MAGIC)


class CacheFileWriter:
    """Writes the slices of buckets, in whatever order they come, and then index and counts."""

    def __init__(self, file: BinaryIO, num_buckets: int) -> None:
        self.file, self.num_buckets = file, num_buckets
        self._offset = self._held = 0
        self._run: defaultdict[int, list[Any]] = defaultdict(list)
        self._index: list[Entries] = []

    def add(self, bucket: int, data: Any) -> None:
        """Add bytes of a bucket; they are held until the run is large enough."""
        self._run[bucket].append(data)
        self._held += len(data)
        if self._held >= RUN_BYTES:
            self._write_run()

    def finish(self, counts: Counts) -> None:
        """Write what is held, index, counts and end."""
        self._write_run()
        index = np.stack(self._index, axis=1).tobytes()  # [buckets, runs]
        text = counts.to_json().encode()
        end = CacheFileEnd(
            index_start=self._offset,
            counts_start=self._offset + len(index),
            counts_bytes=len(text),
            counts_crc32=zlib.crc32(text),
            runs=len(self._index),
        )
        for part in (index, text, end.to_bytes()):
            self.file.write(part)

    def _write_run(self) -> None:
        if not self._held and self._index:
            return
        lengths, checksums = [], []
        for bucket in range(self.num_buckets):
            data = b"".join(self._run.pop(bucket, ()))
            lengths.append(len(data))
            checksums.append(_checksum(bucket, data))
            self.file.write(data)
        entries = np.zeros(self.num_buckets, ENTRY)
        entries["length"], entries["crc32"] = lengths, checksums
        entries["start"] = self._offset + offsets_of(lengths)[:-1]
        self._index.append(entries)
        self._offset += sum(lengths)
        self._held = 0


def read_ends(paths: Sequence[AnyPath]) -> list[CacheFileEnd]:
    """The end of each file. Raises CorruptDataError for one that is missing or damaged."""
    ends = []
    for path, data in read_parts([(path, -END.size, END.size) for path in paths]):
        end = CacheFileEnd._make(END.unpack(data)[:5]) if len(data) == END.size else None
        if end is None or end.to_bytes() != data.to_pybytes():
            raise damaged(path, "its end is not that of a token cache file")
        ends.append(end)
    return ends


def read_counts(paths: Sequence[AnyPath]) -> Iterator[Counts]:
    """The counts of each file. Raises CorruptDataError for one that is missing or damaged."""
    ends = read_ends(paths)
    counted = zip(paths, ends, strict=True)
    read = read_parts([(path, end.counts_start, end.counts_bytes) for path, end in counted])
    for (path, data), end in zip(read, ends, strict=True):
        if zlib.crc32(data) != end.counts_crc32:
            raise damaged(path, "the checksum of its counts differs")
        yield Counts.from_json(data.to_pybytes())


def read_index(
    paths: Sequence[AnyPath], ends: Sequence[CacheFileEnd], buckets: range
) -> list[Entries]:
    """Where each file holds its slices of some consecutive buckets, [buckets, runs] each."""
    ranges, indexes = [], []
    for path, end in zip(paths, ends, strict=True):
        row = end.runs * ENTRY.itemsize
        ranges.append((path, end.index_start + buckets.start * row, len(buckets) * row))
    for (path, data), (_, _, size), end in zip(read_parts(ranges), ranges, ends, strict=True):
        if len(data) != size:
            raise damaged(path, "its index is cut off")
        indexes.append(np.frombuffer(data, ENTRY).reshape(len(buckets), end.runs))
    return indexes


def read_slices(parts: Iterable[tuple[AnyPath, Entries]], bucket: int) -> Iterator[pa.Buffer]:
    """The bytes of a bucket in each file, a buffer per non-empty slice; entries are [runs]."""
    flat = [(path, *entry) for path, entries in parts for entry in entries.tolist()]
    read = read_parts([(path, start, length) for path, start, length, _ in flat if length])
    for path, _, length, crc32 in flat:
        data = next(read)[1] if length else b""
        if _checksum(bucket, data) != crc32:
            raise damaged(path, "its checksum differs")
        if length:
            yield data


def read_runs(path: AnyPath, num_buckets: int) -> Iterator[tuple[int, memoryview]]:
    """All slices of a file with their buckets; one run is in memory at a time."""
    ends = read_ends([path])
    [index] = read_index([path], ends, range(num_buckets))
    for entries in index.T:
        lengths, checksums = entries["length"].tolist(), entries["crc32"].tolist()
        [(_, data)] = read_parts([(path, int(entries["start"][0]), sum(lengths))])
        view, start = memoryview(data), 0
        for bucket, (length, crc32) in enumerate(zip(lengths, checksums, strict=True)):
            part = view[start : start + length]
            start += length
            if _checksum(bucket, part) != crc32:
                raise damaged(path, "its checksum differs")
            if length:
                yield bucket, part


def _checksum(bucket: int, data: Any) -> int:
    return zlib.crc32(data, bucket + 1)


def read_parts(ranges: Sequence[tuple[AnyPath, int, int]]) -> Iterator[tuple[AnyPath, pa.Buffer]]:
    """The bytes of each range. Errors say which file cannot be read, and what to do."""
    read = read_ranges(ranges)
    for path, _, _ in ranges:
        try:
            data = next(read)
        except MemoryError:  # Arrow's, too
            raise
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
                raise unreadable(path, error) from error
            raise damaged(path, error) from error
        yield path, data


def damaged(path: AnyPath, reason: object) -> DamagedFileError:
    """The error for a file of the token cache that cannot be read as it was written."""
    error = DamagedFileError(f"{path} is damaged ({reason}); delete it and rerun the command.")
    error.path = path
    return error
