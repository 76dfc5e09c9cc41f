"""What every model must pass when it is loaded for use: its own files, and finite weights."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

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


def check_finite(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Raises InputError, with the first name, for weights that are infinite or not numbers."""
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise InputError(
                f"{folder} has weights that are not finite ({name}); its training has diverged, so "
                "use an earlier checkpoint or train again with a smaller --learning-rate."
            )
