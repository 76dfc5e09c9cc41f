"""Paths, globs and URLs to files, and files to streams of unpacked bytes.

    "data/*.jsonl.gz"  ->  [File(path="/../data/a.jsonl.gz", size=812, version="812-1763.."), ...]

Everything is opened through fsspec, so that `s3://`, `https://` and `memory://` work like a disk.
Two kinds of failure are kept apart: of the disk or the network, and of an archive that is truncated
or corrupt. Both stop the job with a line that names the file.
"""

import bz2
import gzip
import io
import lzma
import re
import shlex
import zlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from clozeline.pipeline.common.errors import ClozelineError, InputError
from clozeline.pipeline.common.paths import kind_in_store, version_of, with_retries
from clozeline.pipeline.sources.encoding import is_utf8
from clozeline.pipeline.sources.source_query import COMMON

BUFFER = 1 << 20  #: bytes of a request, at least; twice as many from a store, which answers slowly
HEAD_BYTES = 1 << 16  #: read to recognize what a file holds
MIN_TEXT = 16  #: bytes; fewer may be the beginning of an archive that is truncated
CHUNK = 1 << 16  #: bytes of a packed file, and unpacked bytes, processed at once
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)  #: what the unpackers raise

MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}
COMPRESSIONS = tuple(MAGIC.values())
MAGIC |= {b"]\0\0": "xz", b"\x50*M\x18": "zst"}  # the older .lzma, and pzstd's skippable frame
COMMANDS = {"bz2": "bzip2 -d", "gz": "gzip -d", "xz": "xz -d", "zst": "zstd -d --long=31"}
#: What an unpacker says where it does not know how a file is packed; all else is damage.
LIMIT = re.compile("too much memory|Dictionary mismatch|nsupported|nknown compression method")
#: Unpacked bytes per 100 bytes of file: an estimate, and a constant.
UNPACKED_PERCENT = {None: 100, "gz": 280, "zst": 290, "xz": 370, "bz2": 370}

GLOB = re.compile(r"[*?\[]")
OPEN_FILE = re.compile(r"/dev/(stdin|fd/)")  # another file in each process


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that exists: `path` is absolute, or a URL; `version` changes with its content."""

    path: str
    size: int  #: bytes
    version: str


def find_files(source: str) -> list[File]:
    """The files that a path, glob or URL names, sorted.

    Raises InputError for an empty name, a missing file, a glob without match, a folder, a pipe.
    """
    if not source:
        raise InputError("a source has an empty name; give the path of a file, a glob or a URL.")
    try:
        store, path = _store_of(source)
        kind = _kind_of(store, path)
        if kind == "file":
            return [_describe(store, path)]
        if kind == "directory":
            raise InputError(
                f"{source} is a folder; name its files, as in '{source.rstrip('/')}/*'"
            )
        if kind == "stream":
            raise InputError(
                f"{source} is a pipe or device, and a source is read more than once; save its "
                "text as a file and give that."
            )
        if not GLOB.search(path):
            raise InputError(f"{source}: no such file; check the path")
        files = [_describe(store, name) for name in _matches(store, path)]
    except ImportError as error:
        raise InputError(f"{source} needs a package that is not installed: {error}") from error
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error}") from error
    except ClozelineError:
        raise
    except Exception as error:  # an unknown protocol, a bad archive: any exception of a store's own
        raise InputError(f"{source} cannot be opened: {error}") from error
    if not files:
        is_query = re.search(r"\?\w+=", source)
        options = f", or the option: {', '.join(COMMON)}" if is_query else ""
        brackets = "; a [ that is part of a name is written [[]" if "[" in path else ""
        raise InputError(f"{source} matches no file; check the path{options}{brackets}")
    return files


def _kind_of(store: Any, path: str) -> str | None:
    """ "file", "directory" or "stream"; None where there is nothing. Raises StoreError."""
    if isinstance(store, LocalFileSystem):
        if store.isfile(path) and not OPEN_FILE.match(path):
            return "file"
        return "directory" if store.isdir(path) else "stream" if store.exists(path) else None
    store.invalidate_cache()  # a listing would answer for a file that has changed since
    return kind_in_store(store, path, path)


def _matches(store: Any, path: str) -> list[str]:
    if isinstance(store, LocalFileSystem):  # follows links
        names = sorted(_without_hidden(path, store.glob(path)))
        if lost := [name for name in names if not Path(name).exists()]:
            raise InputError(f"{lost[0]} links to a file that is missing; restore it, or remove it")
        return [name for name in names if store.isfile(name)]
    # From the listing: `isfile` would take an error of the store for "no", and drop the file.
    listed = store.glob(path, detail=True)
    shown = _without_hidden(path, listed)
    return sorted(name for name in shown if listed[name]["type"] == "file")


def _without_hidden(pattern: str, names: Iterable[str]) -> list[str]:
    """The names without hidden files and folders, unless the pattern names such: as in a shell."""
    root = GLOB.split(pattern, maxsplit=1)[0].rpartition("/")[0]
    if "/." in pattern[len(root) :]:
        return list(names)
    return [name for name in names if "/." not in name[len(root) :]]


def _store_of(source: str) -> tuple[Any, str]:
    """The store and its path; a path on this machine may contain "::", which chains URLs."""
    if "://" in source:
        store, path = fsspec.core.url_to_fs(source)
        return store, path
    local = LocalFileSystem()
    return local, str(local._strip_protocol(source))


def _describe(store: Any, path: str) -> File:
    info = store.info(path)
    name = path if isinstance(store, LocalFileSystem) else store.unstrip_protocol(path)
    if info.get("size") is None:
        raise InputError(f"{name}: the server does not report its size; download it first")
    return File(path=name, size=info["size"], version=version_of(info))


def bare_name(path: str) -> str:
    """The base name without the extension of a compression."""
    return _split_name(path)[0]


def _split_name(path: str) -> tuple[str, str | None]:
    """ "https://a/b.txt.gz?c"  ->  "b.txt", "gz" """
    path = re.split(r"[?#]", path, maxsplit=1)[0] if "://" in path else path
    name = path.rpartition("/")[2]
    bare, _, ending = name.rpartition(".")
    return (bare, ending.lower()) if ending.lower() in COMPRESSIONS else (name, None)


class RawFile(io.RawIOBase):
    """A file whose errors name it and are not OSErrors, so that none passes for a bad archive.

    A store is retried; if it still fails, that is a StoreError. It is asked only for what is read,
    unless `reads_ahead`: fsspec's own cache fetches 5 MB more or, in S3, 50.
    """

    def __init__(self, path: str, *, reads_ahead: bool = False) -> None:
        self.path = path
        options = {} if reads_ahead else {"cache_type": "none"}
        try:
            store, name = _store_of(path)
            self.is_here = isinstance(store, LocalFileSystem)
            self._file = self._with_retries(lambda: store.open(name, "rb", **options))
        except (OSError, ImportError) as error:
            raise InputError(f"{path} cannot be opened: {error}") from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read(-1)

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._with_retries(lambda: self._file.read(size)))
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error}") from error

    def _with_retries(self, ask: Callable[[], Any]) -> Any:
        return ask() if self.is_here else with_retries(ask, self.path)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a stream; reading them raises InputError where it is damaged."""

    def __init__(self, packed: io.BufferedReader, compression: str) -> None:
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
            except StopIteration:
                return 0
            except DAMAGE as error:  # this also ends the iterator
                path = getattr(self._packed.raw, "path", f"a .{self._compression} file")
                raise damaged(path, self._compression, error) from error
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._chunks.close()
        self._packed.close()
        super().close()


def _unpack(packed: io.BufferedReader, compression: str) -> Generator[bytes, None, None]:
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
                yield from iter(lambda: bytes(file.read(CHUNK)), b"")


def unpack_streams(
    packed: IO[bytes], decompressor: type[bz2.BZ2Decompressor] | type[lzma.LZMADecompressor]
) -> Generator[bytes, None, None]:
    """Concatenated streams, as pbzip2 writes them; xz streams may have NULs after them.

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
        if decompressor is lzma.LZMADecompressor:  # padding (section 2.2 of the format)
            while data and not (data := data.lstrip(b"\0")):
                data = packed.read(CHUNK)


def open_file(path: str) -> io.BufferedReader:
    """The bytes as they are stored; seekable. Raises InputError where they cannot be read."""
    # A web server may not know ranges: with what is read ahead, a small file is one request.
    raw = RawFile(path, reads_ahead=path.startswith("http"))
    return io.BufferedReader(raw, BUFFER if raw.is_here else 2 * BUFFER)


def unpacked_head(path: str) -> tuple[bytes, str | None]:
    """The first unpacked bytes, and the compression: by the file's first bytes, else by its name.

    Text is not compressed, whatever the name of its file. Raises InputError where they cannot be
    read.
    """
    with RawFile(path) as file:
        head = file.read(HEAD_BYTES) or b""
    packed = (name for magic, name in MAGIC.items() if head.startswith(magic))
    compression = next(packed, None)
    if not (compression or (len(head) >= MIN_TEXT and is_utf8(head))):
        compression = _split_name(path)[1]
    if compression:
        with open_unpacked(path, compression) as stream:
            head = stream.read(HEAD_BYTES)
    return head, compression


def unpack(packed: io.BufferedReader, compression: str | None) -> io.BufferedReader:
    """The unpacked bytes of an open file. Closing them closes it."""
    return io.BufferedReader(Unpacked(packed, compression), BUFFER) if compression else packed


def open_unpacked(path: str, compression: str | None) -> io.BufferedReader:
    """The unpacked bytes of a file. Raises InputError where it cannot be read."""
    return unpack(open_file(path), compression)


def damaged(path: str, compression: str, reason: object) -> InputError:
    """The error for an archive that cannot be unpacked, with the command that does what it can."""
    dictionary = " -D DICTIONARY" if "Dictionary" in str(reason) else ""
    command = f"{COMMANDS[compression]}{dictionary} -c OLD"
    if LIMIT.search(str(reason)):
        return InputError(
            f"{path} was packed with unsupported options ({reason}); pack it anew, as by "
            f"{command} | gzip > NEW.gz"
        )
    return InputError(
        f"{path} is not whole: truncated or corrupt {compression}: {reason}. Get the whole file, "
        f"or unpack what can be read of it: {command} > {shlex.quote(f'part-{bare_name(path)}')}"
    )
