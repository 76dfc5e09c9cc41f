"""Paths: local ones, and URLs of any store that fsspec can open.

    "work/shards"       ->  pathlib.Path
    "s3://bucket/a"     ->  UPath, which has the methods of a Path

Files are written with `whole_file`. Requests to a store are batched, retried after a failure, and
reported as the store's errors: one that does not answer, refuses or has lost a file (a timeout,
403, 404, 503) says nothing about the data, so it is a StoreError, never a CorruptDataError.
"""

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar, cast

import pyarrow as pa

from clozeline.pipeline.common.errors import ClozelineError, InputError, StoreError, one_line

if TYPE_CHECKING:
    from typing_extensions import TypeIs
    from upath import UPath

    AnyPath: TypeAlias = Path | UPath
    #: What a user gives for a file or folder: a path, or the URL of a store.
    GivenPath: TypeAlias = str | os.PathLike[str] | UPath
else:  # importing upath takes a while, and only URLs need it
    AnyPath = Path
    GivenPath = str | os.PathLike[str]

#: The names of files that `whole_file` has not finished.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{32}\.partial")
#: Stores of buckets, where folders need not be made: making one would create a missing bucket.
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
IN_FLIGHT = 64  #: ranges that are requested from a store at once
#: Keys of what changes with a file's content, in different stores; the first one found counts.
VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated")
ADVICE = "check the path, the network and the credentials, then run the command again."
PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0)  # seconds before each further attempt

Found = TypeVar("Found")


def path_of(given: GivenPath) -> AnyPath:
    """The path that a user gave; a "~" at its start is the home folder, also in a --config file.

    Raises InputError for what no path can be, and for a store that cannot be reached.
    """
    if hasattr(given, "fs"):  # a UPath; that of file:// is PathLike, too
        return cast("UPath", given)
    if isinstance(given, os.PathLike):
        return Path(given)
    if not isinstance(given, str):
        fix = "write it to a file, and give the name of that"
        raise InputError(
            f"{type(given).__name__} is not a path; "
            f"{fix if is_table(given) else 'give the name of a file or folder'}."
        )
    if not given or "\0" in given:
        raise InputError(f"{given!r} is not a path; give the name of a file or folder.")
    if "://" not in given:
        return local_path(given)
    _check_url(given)
    try:
        from upath import UPath

        path = UPath(given)
        _ = path.fs  # connects: a store that cannot be reached is an error here, not later
    except Exception as error:  # each store's library has exceptions of its own
        raise InputError(f"{given} cannot be reached: {one_line(error)}") from error
    return path


def local_path(given: str) -> Path:
    """The path on this machine; a "~" at its start is the home folder."""
    return Path(os.path.expanduser(given))  # noqa: PTH111 (Path("./~") has lost its "./")


def each_given(given: GivenPath | Iterable[GivenPath]) -> Iterator[str]:
    """One source, or several, as strings: a string is one, not its characters."""
    is_one = isinstance(given, str | os.PathLike) or not isinstance(given, Iterable)
    several: Any = [given] if is_one or is_table(given) else given
    return map(source_name, several)


def source_name(given: GivenPath) -> str:
    """A source that a user gave, as a string. Raises InputError for what no path can be."""
    return given if isinstance(given, str) else str(path_of(given))


def is_table(given: object) -> bool:
    """Whether it is a table of pandas, polars, pyarrow or datasets, or a mapping.

    Iterated over, most of them give the names of their columns.
    """
    return isinstance(given, Mapping) or any(
        hasattr(given, name) for name in ("columns", "column_names")
    )


def _check_url(url: str) -> None:
    """Raises InputError for what a store's library would call a failure of the store."""
    protocol, _, rest = url.partition("://")
    bucket, *others = rest.partition("::")[0].rstrip("/").split("/")
    is_bad = url != url.strip() or not (bucket or any(others))
    if protocol in OBJECT_STORES:
        is_bad |= not all((bucket, *others)) or len(bucket.split()) > 1
    if is_bad:
        raise InputError(
            f"{url!r} names nothing in a store; write it as {protocol.strip()}://BUCKET/PATH, "
            "without empty parts and spaces around them."
        )


def has_folders(path: AnyPath) -> bool:
    """Whether a folder must be made before a file is written into it."""
    return is_local(path) or path.protocol not in OBJECT_STORES


def is_local(path: AnyPath) -> "TypeIs[Path]":
    return isinstance(path, Path)


@contextmanager
def whole_file(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when it is complete.

    The temporary name is unique, so processes that write the same file do not disturb each other;
    the last to finish wins. Raises InputError for a device or a pipe, which it would replace.
    """
    if is_local(path) and path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file, and would be replaced; give another name.")
    partial = _partial(path)
    try:
        with _written(partial) as file:
            yield file
        partial.rename(path)  # type: ignore[arg-type]  # both of one kind
    finally:
        partial.unlink(missing_ok=True)


def write_together(
    folder: AnyPath, contents: Mapping[str, bytes], *, removed: Iterable[str] = ()
) -> None:
    """Write files of a folder, and remove others, only once all of them have been written.

    If that fails, for lack of space, nothing has changed. Then the `removed` ones go, in this
    order, and the files get their names, in that of `contents`.
    """
    partials = {name: _partial(folder / name) for name in contents}
    try:
        for name, partial in partials.items():
            with _written(partial) as file:
                file.write(contents[name])
        for name in removed:
            (folder / name).unlink(missing_ok=True)
        for name, partial in partials.items():
            partial.rename(folder / name)  # type: ignore[arg-type]  # both of one kind
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


def _partial(path: AnyPath) -> AnyPath:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")


@contextmanager
def _written(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a file; at the end, a local one is on the disk."""
    with path.open("wb") as file:
        yield file
        file.flush()
        if is_local(path):
            os.fsync(file.fileno())


def names_in(folder: AnyPath) -> set[str]:
    """The current names of the files in a folder; empty if there is no folder."""
    try:
        if is_local(folder):
            return {path.name for path in folder.iterdir()}
        folder.fs.invalidate_cache()  # fsspec caches listings
        paths = folder.fs.ls(folder.path, detail=False)
    except (FileNotFoundError, NotADirectoryError):  # another process may have removed it
        return set()
    names = (name.rstrip("/") for name in paths)
    # Some stores list the folder itself, too.
    return {name.rpartition("/")[2] for name in names if name != folder.path.rstrip("/")}


def make_folder(path: AnyPath) -> None:
    """Create the folder and its parents, where there are any. Raises InputError if that fails."""
    if not has_folders(path):
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create the folder {path} ({error.strerror or error}); give another path."
        ) from error


def remove_named(folder: AnyPath, names: Iterable[str]) -> None:
    """Delete files of a folder; from a store in as few requests as it allows."""
    paths = [folder / name for name in names]
    if not is_local(folder) and paths:
        with suppress(FileNotFoundError):  # one is gone already; the loop removes the rest
            folder.fs.rm([path.path for path in paths])  # type: ignore[union-attr]
            return
    for path in paths:
        path.unlink(missing_ok=True)


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
        entries: list[dict[str, Any]] = store.ls(name, detail=True)
        return entries

    entries = with_retries(listed, folder)
    return {info["name"].rstrip("/").rpartition("/")[2]: info.get("size") for info in entries}


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
