"""The files of a folder, here and in its store, without those that are still being written."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from clozeline.pipeline.common.folder_lock import LOCK
from clozeline.pipeline.common.store import version_of
from clozeline.train.store.store_lease import LEASE

if TYPE_CHECKING:
    from upath import UPath

#: Uploaded after all other files of their folder.
LAST = ("state.json", "classifier.json", "config.json", "modules.json", "summary.json")
#: Local files that belong to this machine alone.
OWN = (LOCK, LEASE)

Stamp = tuple[int, int]  # size and modification time of a local file
Names = dict[str, Stamp]


def local_files(folder: Path) -> Names:
    """Size and time of every complete file, by its path within the folder."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if is_copied(name) and path.is_file():
            status = path.stat()
            found[name] = (status.st_size, status.st_mtime_ns)
    return found


def is_copied(name: str) -> bool:
    """Whether a file is copied: not locks, nor what is still being written."""
    parts = Path(name).parts
    return parts[-1] not in OWN and not any(
        part.endswith((".partial", ".replaced")) for part in parts
    )


def remove_empty_folders(folder: Path) -> None:
    """Remove empty folders, left by checkpoints that are gone from the store."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def remote_files(folder: "UPath") -> dict[str, str]:
    """The version of each of a store's files by name, without those of unfinished checkpoints.

    Raises what the store raises.
    """
    fs, root = folder.fs, folder.path.rstrip("/")
    fs.invalidate_cache()
    found = fs.find(root, detail=True) if fs.exists(root) else {}
    versions = {path[len(root) + 1 :]: version_of(info) for path, info in found.items()}
    return {name: version for name, version in versions.items() if _is_whole(name, versions)}


def _is_whole(name: str, names: Collection[str]) -> bool:
    folder = Path(name).parent
    is_checkpoint = folder.name.startswith("step-")
    return is_copied(name) and (not is_checkpoint or f"{folder.as_posix()}/{LAST[0]}" in names)
