"""Shard files: reader and writer of both formats.

`arrow` is an Arrow IPC file, uncompressed by default, so that it can be memory-mapped.
`webdataset` is a tar whose members (`000000.arrow`, ...) are Arrow IPC streams of one record batch:
plain `webdataset` reads it with one handler. One member per example would take several times the
disk space and a hundred times the CPU time.

Both consist of record batches of 1,024 rows, and both have the same `rows_sha256`.
"""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from itertools import chain
from shlex import quote
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clozeline.pipeline.common.errors import CorruptDataError, InputError, unreadable
from clozeline.pipeline.common.paths import AnyPath, is_local, read_file, whole_file
from clozeline.pipeline.common.ragged import Ragged, to_record_batch
from clozeline.pipeline.dataset.manifest import LENGTH_BIN, ShardEntry
from clozeline.pipeline.dataset.schema import (
    PACKED_VERSION,
    ROWS_PER_BATCH,
    SCHEMA_VERSION,
    Examples,
    concatenate_examples,
    from_record_batch,
    stored_version,
)

SUM_BYTES: Final = 4096  # per 64-bit sum of the checksum
SUFFIXES: Final = {"arrow": ".arrow", "webdataset": ".tar"}


def shard_name(split: str, index: int, count: int, format: str) -> str:
    """For example train-00003-of-00064.arrow."""
    return f"{split}-{index:05d}-of-{count:05d}{SUFFIXES[format]}"


def write_shard(
    path: AnyPath, examples: Examples, schema: pa.Schema, *, format: str, compression: str | None
) -> ShardEntry:
    """Write a shard, atomically; equal rows give equal bytes."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    to_bytes = _arrow_file if format == "arrow" else _webdataset_file
    # About 40 MB in memory: the digest then needs no second read from a remote store.
    data = to_bytes(record_batches(examples, schema), schema, options)
    with whole_file(path) as file:
        file.write(data)
    return ShardEntry(
        name=path.name,
        split=path.name.partition("-")[0],
        rows=len(examples),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        rows_sha256=rows_sha256(examples),
        checksum=checksum(data),
        length_histogram=np.bincount((examples.input_ids.lengths - 1) // LENGTH_BIN).tolist(),
    )


def checksum(data: Any) -> int:
    """A digest that costs little more than reading the bytes; detects damage, but not attacks.

    The crc32 of the 64-bit sums of each 4 KiB, and of what is left: 30 GB/s, where crc32 alone
    does 4 and sha256 2. No change of a single word goes unnoticed.
    """
    count = len(data) // SUM_BYTES * SUM_BYTES
    words = np.frombuffer(data, "<u8", count=count // 8).reshape(-1, SUM_BYTES // 8)
    return zlib.crc32(memoryview(data)[count:], zlib.crc32(words.sum(axis=1).astype("<u8")))


def read_shard(path: AnyPath, *, expected: int | None = None) -> Examples:
    """All rows of a shard, whose bytes must have the `expected` checksum, if given.

    Raises InputError for a file that is missing or of another schema version, CorruptDataError for
    a damaged one, StoreError for a store that fails again and again.
    """
    batches = read_batches(path, expected=expected)
    return concatenate_examples([from_record_batch(batch) for batch in batches])


def read_batches(path: AnyPath, *, expected: int | None = None) -> Iterator[pa.RecordBatch]:
    """The record batches of a shard, as views of the file if it is local and not compressed.

    A shard without rows yields one empty batch. Raises the same errors as `read_shard`.
    """
    try:
        source = pa.memory_map(str(path)) if is_local(path) else pa.BufferReader(read_file(path))
        whole = source.read_buffer()
        if expected is not None and checksum(whole) != expected:
            raise pa.ArrowInvalid("its bytes are not those that were written")
        read = _read_webdataset if path.suffix == ".tar" else _read_arrow
        for batch in read(path, whole):
            batch.validate(full=True)  # its buffers are read without bounds checks
            yield batch
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; rerun `clozeline shards` to rebuild it.") from error
    except MemoryError:  # Arrow's, too
        raise
    except (pa.ArrowException, tarfile.TarError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from error
        raise damaged_shard(path, str(error)) from error


def damaged_shard(path: AnyPath, how: str) -> CorruptDataError:
    """The error for a shard whose content is wrong, with the command that lists all such shards."""
    return CorruptDataError(
        f"{path} is damaged ({how}); `clozeline verify {quote(str(path.parent))}` lists damaged "
        "shards."
    )


def rows_sha256(examples: Examples) -> str:
    """A digest of the columns: their names, row lengths and little-endian values."""
    digest = hashlib.sha256()
    for name, column in examples.columns().items():
        digest.update(name.encode())
        if isinstance(column, Ragged):
            digest.update(column.lengths.astype("<u4").data)
            column = column.values
        digest.update(column.astype(column.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()


def record_batches(examples: Examples, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows, 1,024 in a batch."""
    for start in range(0, len(examples), ROWS_PER_BATCH):
        yield to_record_batch(examples.slice(start, start + ROWS_PER_BATCH), schema)


def _arrow_file(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, options: pa.ipc.IpcWriteOptions
) -> memoryview:
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(file.getvalue())


def _webdataset_file(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, options: pa.ipc.IpcWriteOptions
) -> memoryview:
    import webdataset

    file = io.BytesIO()
    writer = webdataset.TarWriter(file, encoder=False, mtime=0)
    first = next(batches, _no_rows(schema))  # a shard without rows still has a schema
    for number, batch in enumerate(chain([first], batches)):
        member = pa.BufferOutputStream()
        with pa.ipc.new_stream(member, schema, options=options) as stream:
            stream.write_batch(batch)
        writer.write({"__key__": f"{number:06d}", "arrow": member.getvalue().to_pybytes()})
    writer.close()
    return file.getbuffer()


def _read_arrow(path: AnyPath, whole: pa.Buffer) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(whole)
    _check_version(path, reader.schema)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)
    if not reader.num_record_batches:
        yield _no_rows(reader.schema)


def _read_webdataset(path: AnyPath, whole: pa.Buffer) -> Iterator[pa.RecordBatch]:
    with tarfile.open(fileobj=pa.BufferReader(whole), mode="r:") as archive:
        members = [(member.offset_data, member.size) for member in archive]
    for offset, size in members:
        stream = pa.ipc.open_stream(whole.slice(offset, size))
        _check_version(path, stream.schema)
        try:
            batch = stream.read_next_batch()
        except StopIteration as error:
            raise pa.ArrowInvalid("a member has no record batch") from error
        yield batch


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _check_version(path: AnyPath, schema: pa.Schema) -> None:
    version = stored_version(schema)
    if version not in (str(SCHEMA_VERSION), str(PACKED_VERSION)):
        raise InputError(
            f"{path} has schema version {version[:40]}, this code reads "
            f"{SCHEMA_VERSION} and {PACKED_VERSION}; build it again with `clozeline shards`."
        )
