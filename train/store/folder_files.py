"""The files of a folder, here and in its store, without those that are still being written."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clozeline.pipeline.common.folder_lock import LEASE
from clozeline.pipeline.common.folders import LOCK
from clozeline.pipeline.common.paths import version_of

if TYPE_CHECKING:
    from upath import UPath

STATE = "state.json"
#: Uploaded after all other files, and removed before them.
VALIDATING = (STATE, "classifier.json", "config.json", "modules.json", "summary.json")
WEIGHTS = "checkpoints/step-*/*.safetensors"
#: Files that training appends to; they are uploaded when others are.
LOGS = ("metrics.jsonl", "tensorboard/*")

Stamp = list[int]  # size and modification time of a local file


def validating_last(name: str) -> tuple[bool, str]:
    """For sorting: the files that make a folder valid come after the others."""
    return Path(name).name in VALIDATING, name


def is_weights(name: str) -> bool:
    """Whether a file is of a checkpoint, besides its state."""
    return Path(name).match(WEIGHTS)


def is_log(name: str) -> bool:
    """Whether training appends to a file all the time."""
    return any(Path(name).match(pattern) for pattern in LOGS)


def stamp_of(path: Path) -> Stamp:
    """What changes with a local file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def local_files(folder: Path) -> dict[str, Stamp]:
    """The stamp of every complete file, by its path within the folder."""
    stamps = {}
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            name = path.relative_to(folder).as_posix()
            with suppress(FileNotFoundError):  # removed meanwhile
                if _is_copied(name):
                    stamps[name] = stamp_of(path)
    return stamps


def remote_files(folder: "UPath") -> dict[str, str]:
    """The version of each of a store's files by name, without those of unfinished checkpoints.

    Raises what the store raises.
    """
    fs, root = folder.fs, folder.path.rstrip("/")
    fs.invalidate_cache()
    try:
        fs.info(root)  # `find` and `exists` may take a failure for "no"
    except FileNotFoundError:
        return {}
    by_name = {path[len(root) + 1 :]: info for path, info in fs.find(root, detail=True).items()}
    return {
        name: version_of(info)
        for name, info in by_name.items()
        if _is_copied(name) and not (is_weights(name) and state_of(name) not in by_name)
    }


def state_of(weights: str) -> str:
    """The name of the file that makes a checkpoint of weights."""
    return Path(weights).with_name(STATE).as_posix()


def remove_empty_folders(folder: Path) -> None:
    """Remove empty folders, left by checkpoints that are gone from the store."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _is_copied(name: str) -> bool:
    """Whether a file belongs in both folders: locks and partial files do not."""
    parts = Path(name).parts
    return parts[-1] not in (LOCK, LEASE) and not any(
        part.endswith((".partial", ".replaced")) for part in parts
    )
