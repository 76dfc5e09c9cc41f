"""Whether the files of a model are its own."""

from pathlib import Path

from clozeline.pipeline.common.errors import InputError


def check_links(folder: Path) -> None:
    """Raises InputError for a file that is a link to somewhere outside of the folder.

    The hub's cache keeps its files beside the folder: snapshots/5f2c/vocab.txt -> ../../blobs/ab12
    """
    root = folder.resolve()
    if root.parent.name == "snapshots":
        root = root.parent.parent
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise InputError(
                f"{path} is a link to {path.resolve()}, outside of the model's folder; copy the "
                "file there if that is what you want."
            )
