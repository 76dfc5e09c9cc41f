"""Where files are kept: a local path, or a place in any store that fsspec knows, by its URL.

    "work/shards"       ->  pathlib.Path
    "s3://bucket/a"     ->  UPath, which has the methods of a Path

What the pipeline writes goes through `whole_file`, and what it reads back through `open_mapped`.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from pipeline.common.errors import InputError


def path_of(place: str | Path) -> Path:
    """The path that a user names. Raises InputError for a store that cannot be reached."""
    if not isinstance(place, str):
        return place
    if "://" not in place:
        return Path(place)

    try:
        from upath import UPath

        path = UPath(place)
        _ = path.fs  # made when it is asked for: now, while the user looks on
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"{place} cannot be reached: {error}") from error
    return cast(Path, path)


def is_local(path: Path) -> bool:
    """Whether the path is on this machine's disk."""
    return isinstance(path, Path)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only once it is complete.

    The temporary name is unique, so two processes that write the same file do not meet; the last
    one to finish wins with the same bytes.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with cast(BinaryIO, partial.open("wb")) as file:
            yield file
            file.flush()
            if is_local(path):
                os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def open_mapped(path: Path) -> pa.NativeFile:
    """A file to read here and there: mapped into memory, or fetched piece by piece from a store.

    Raises OSError where it cannot be opened.
    """
    return pa.memory_map(str(path)) if is_local(path) else pa.PythonFile(path.open("rb"), "r")


def names_in(folder: Path) -> set[str]:
    """The names of the files in a folder, as they are now; none if there is no folder."""
    if not is_local(folder):
        cast(Any, folder).fs.invalidate_cache()  # stores remember what they listed
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def make_folder(path: Path) -> None:
    """Raises InputError where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be made a folder ({error.strerror or error}); give another."
        ) from error


def remove_folder(path: Path) -> None:
    """With all that is in it; none is no error."""
    if not path.exists():
        return
    if is_local(path):
        shutil.rmtree(path)
    else:
        cast(Any, path).rmdir(recursive=True)
