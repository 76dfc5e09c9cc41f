"""Packed bytes to unpacked bytes, a chunk at a time; damage ends them instead of raising.

b"BZh91AY..."  ->  b"Rome is", b" a city."
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Generator
from typing import IO, Any

import pyarrow as pa

from clozeline.pipeline.common.errors import InputError

CHUNK = 1 << 16  #: bytes of a packed file, and unpacked bytes, processed at once
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)  # what the unpackers raise


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a stream. They end early if it is truncated or corrupt."""

    def __init__(self, packed: io.BufferedReader, compression: str) -> None:
        self.damage: str | None = None  #: why the stream ended early
        self.taken = 0  #: packed bytes that were read so far
        self._compression = compression
        self._packed = packed
        self._chunks = _unpack(packed, compression)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                self._rest = memoryview(next(self._chunks))
                self.taken = self._packed.tell()  # a stream that has ended may be closed
            except StopIteration:
                return 0
            except DAMAGE as error:  # this also ends the iterator
                self.damage = f"truncated or corrupt {self._compression}: {error}"
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._chunks.close()
        self._packed.close()
        super().close()


def _unpack(packed: io.BufferedReader, compression: str) -> Generator[bytes, None, None]:
    """Chunks of unpacked bytes. Small ones, since the content of a damaged chunk is lost."""
    if not packed.peek(1):  # even nothing takes some bytes when packed
        raise EOFError("the file is empty")
    match compression:
        case "bz2":
            yield from unpack_streams(packed, bz2.BZ2Decompressor)
        case "xz":
            yield from unpack_streams(packed, lzma.LZMADecompressor)
        case "gz":
            with gzip.GzipFile(fileobj=packed) as file:
                yield from iter(lambda: file.read1(CHUNK), b"")
        case "zst":
            with pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd") as file:
                yield from iter(lambda: _read_zstd(file), b"")


def _read_zstd(file: pa.CompressedInputStream) -> bytes:
    """Raises InputError for a file that is whole, and packed with a window that Arrow refuses."""
    try:
        return bytes(file.read(CHUNK))
    except OSError as error:
        if "too much memory" not in str(error):
            raise
        raise InputError(
            "a .zst file was packed with a window of more than 128 MB (zstd --long=28 or more), "
            "which cannot be read here; pack it anew: zstd -d --long=31 -c OLD.zst | zstd -o "
            "NEW.zst"
        ) from error


def unpack_streams(
    packed: IO[bytes],
    decompressor: type[bz2.BZ2Decompressor] | type[lzma.LZMADecompressor],
) -> Generator[bytes, None, None]:
    """Concatenated streams, as pbzip2 writes them; xz streams may have padding after them.

    The standard library's own classes take a damaged stream after a good one for garbage, and end
    silently.
    """
    data = packed.read(CHUNK)
    while data:
        stream = decompressor()
        yield stream.decompress(data, CHUNK)
        while not stream.eof:
            data = packed.read(CHUNK) if stream.needs_input else b""
            if stream.needs_input and not data:
                raise EOFError("the file ends inside a stream")
            yield stream.decompress(data, CHUNK)
        data = stream.unused_data or packed.read(CHUNK)
        if decompressor is lzma.LZMADecompressor:
            data = _after_padding(data, packed)


def _after_padding(data: bytes, packed: IO[bytes]) -> bytes:
    """What follows the padding of an xz stream (its format, section 2.2): NULs, four at a time."""
    size = 0
    while data:
        rest = data.lstrip(b"\0")
        size += len(data) - len(rest)
        if rest:
            break
        data = packed.read(CHUNK)
    if size % 4:
        raise lzma.LZMAError(f"{size} bytes of padding, which are not a multiple of four")
    return data.lstrip(b"\0")
