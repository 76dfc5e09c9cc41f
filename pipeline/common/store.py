"""Requests to a store: batched, retried after a failure, and reported as the store's errors.

A store that does not answer, refuses or has lost a file (a timeout, 403, 404, 503) says nothing
about the data: it is a StoreError, never a CorruptDataError.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from clozeline.pipeline.common.errors import ClozelineError, StoreError, one_line
from clozeline.pipeline.common.paths import AnyPath, is_local

Found = TypeVar("Found")

IN_FLIGHT = 64  #: ranges that are requested from a store at once
#: Keys of what changes with a file's content, in different stores; the first one found counts.
VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated")
ADVICE = "check the path, the network and the credentials, then run the command again."
PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0)  # seconds before each further attempt


def is_file(path: AnyPath) -> bool:
    """Whether there is such a file. Raises StoreError where a store does not say."""
    return path.is_file() if is_local(path) else kind_in_store(path.fs, path.path, path) == "file"


def exists(path: AnyPath) -> bool:
    """Whether there is such a file or folder. Raises StoreError where a store does not say."""
    return path.exists() if is_local(path) else bool(kind_in_store(path.fs, path.path, path))


def kind_in_store(store: Any, name: str, path: AnyPath | str) -> str | None:
    """ "file" or "directory"; None where a store has neither. Errors name it as `path`.

    Raises StoreError after the last attempt: `isfile` and `exists` would take an error for "no".
    """

    def ask() -> str | None:
        try:
            return str(store.info(name)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    return with_retries(ask, path)


def read_file(path: AnyPath) -> bytes:
    """The content of a file. Raises OSError, and StoreError for one in a store."""
    if is_local(path):
        return path.read_bytes()
    content: bytes = with_retries(partial(path.fs.cat_file, path.path), path)
    return content


def read_ranges(ranges: Sequence[tuple[AnyPath, int, int | None]]) -> Iterator[pa.Buffer]:
    """The bytes of each (file, start, length): mapped, or from a store, `IN_FLIGHT` at a time.

    A negative start counts from the end. Such a range, and one without a length, goes to the end.
    All files are in one store. A file that ends early gives fewer bytes. Raises OSError for a local
    file that cannot be read, and StoreError for a store, after the last attempt.
    """
    for first in range(0, len(ranges), IN_FLIGHT):
        some = ranges[first : first + IN_FLIGHT]
        folder = some[0][0].parent
        if is_local(folder):
            for path, start, length in some:
                with pa.memory_map(str(path)) as file:
                    file.seek(start if start >= 0 else max(0, file.size() + start))
                    yield file.read_buffer(length)
        else:
            names = [str(path.path) for path, _, _ in some]  # type: ignore[union-attr]
            starts = [start for _, start, _ in some]
            stops = [None if start < 0 or size is None else start + size for _, start, size in some]
            read = partial(folder.fs.cat_ranges, names, starts, stops, on_error="raise")
            yield from map(pa.py_buffer, with_retries(read, folder))


def sizes_in(folder: AnyPath) -> dict[str, int | None]:
    """The size of each file in a folder, by name; None where a store gives none.

    Raises StoreError where a store cannot be listed.
    """
    if is_local(folder):
        sizes: dict[str, int | None] = {}
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # another job has renamed its partial file
                if path.is_file():
                    sizes[path.name] = path.stat().st_size
        return sizes
    store, name = folder.fs, folder.path

    def listed() -> list[dict[str, Any]]:
        store.invalidate_cache()
        found: list[dict[str, Any]] = store.ls(name, detail=True)
        return found

    found = with_retries(listed, folder)
    return {info["name"].rstrip("/").rpartition("/")[2]: info.get("size") for info in found}


def reason_of(error: Exception) -> str:
    """A store library's error in one line, with its type, since the message may be empty."""
    return f"{type(error).__name__}: {one_line(error)}".rstrip(": ")


@contextmanager
def naming_store(path: AnyPath) -> Iterator[None]:
    """Errors of a store's library inside the block become StoreError; a local path's pass."""
    try:
        yield
    except (ClozelineError, MemoryError):
        raise
    except Exception as error:
        package = type(error).__module__.partition(".")[0]
        if is_local(path) or (package == "builtins" and not isinstance(error, OSError)):
            raise
        raise StoreError(
            f"{path} cannot be used in its store ({reason_of(error)}); {ADVICE}"
        ) from error


def version_of(info: Mapping[str, Any]) -> str:
    """A string that changes with a file's content, from what its store reports about it."""
    changing = next((info[key] for key in VERSION_KEYS if info.get(key)), info.get("created", ""))
    return f"{info.get('size')}-{changing}"


def with_retries(ask: Callable[[], Found], path: AnyPath | str) -> Found:
    """The store's answer, retried after each of PAUSES. Raises StoreError after the last."""
    rest = iter(PAUSES)
    while True:
        try:
            return ask()
        except MemoryError:
            raise
        except Exception as error:  # each store's library has exceptions of its own
            if (pause := next(rest, None)) is None:
                raise StoreError(
                    f"{path} cannot be used in its store, after {len(PAUSES) + 1} attempts "
                    f"({reason_of(error)}); {ADVICE}"
                ) from error
        time.sleep(pause)
