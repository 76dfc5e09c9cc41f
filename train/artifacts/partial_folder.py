"""A folder that is whole or absent: it is filled under another name, synced and swapped in.

    DIR/.out.3f2a.partial    being filled
    DIR/out  ->  DIR/.out.replaced,    DIR/.out.3f2a.partial  ->  DIR/out

A process that is killed between the two renames leaves no DIR/out; `restore_folder`, which every
reader and writer calls, brings the old one back.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from clozeline.pipeline.common.errors import JobFailedError, advice
from clozeline.pipeline.common.folder_lock import keep_lock


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """A new folder for `replace_folder`, beside `out`. Raises JobFailedError on a full disk."""
    restore_folder(out)
    partial = out.with_name(f".{out.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
    except SafetensorError as error:
        raise JobFailedError(
            f"{out} cannot be written ({error}); {advice(error)} and rerun the command."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(partial: Path, out: Path) -> None:
    """Sync a filled folder and put it in place of `out`; a kill leaves one of the two."""
    keep_lock(out, partial)
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    aside = _aside(out)
    if out.exists():
        shutil.rmtree(aside, ignore_errors=True)  # left by a process killed after its swap
        out.rename(aside)
    partial.rename(out)
    _sync(out.parent)
    shutil.rmtree(aside, ignore_errors=True)
    of_killed_processes = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{32}}\.partial")
    for left in out.parent.iterdir():
        if of_killed_processes.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)


def restore_folder(out: Path) -> None:
    """Bring back the old folder after a kill between the two renames of `replace_folder`."""
    if not out.exists() and _aside(out).exists():
        _aside(out).rename(out)


def _aside(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
