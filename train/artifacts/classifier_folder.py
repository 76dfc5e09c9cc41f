"""The files of a classifier's folder, and what they say without loading its weights.

    DIR/classifier.json     classes, columns, model config, and how it was made
    DIR/model.safetensors   weights by name
    DIR/tokenizer/          a copy
    DIR/report.json         scores on held-out rows, and what they are compared with

The folder is whole or absent, but for DIR/cells/, the results of an unfinished comparison.
"""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.common.errors import InputError

CLASSIFIER, MODEL, REPORT, TOKENIZER = (
    "classifier.json",
    "model.safetensors",
    "report.json",
    "tokenizer",
)
CELLS = "cells"


def read_metadata(folder: Path) -> dict[str, Any]:
    """What classifier.json says. Raises InputError where it is missing or damaged."""
    return _read_json(folder, CLASSIFIER, ("model", "names", "max_seq_length", "job"))


def read_report(folder: Path) -> dict[str, Any]:
    """What report.json says. Raises InputError where it is missing or damaged."""
    return _read_json(folder, REPORT, ("finetuned",))


def is_classifier(folder: Path) -> bool:
    """Whether the folder is a finished classifier's; it is never half of one."""
    return (folder / CLASSIFIER).exists()


def check_room(folder: Path) -> None:
    """Raises InputError where the folder cannot be written, or holds what is not ours."""
    is_strange = folder.exists() and not is_classifier(folder)
    if is_strange and (not folder.is_dir() or any(x.name != CELLS for x in folder.iterdir())):
        raise InputError(f"{folder} exists and is no classifier's folder; give another --out.")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"nothing can be written into {above}; give another --out.")


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _read_json(folder: Path, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        values = json.loads((folder / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} is no classifier (no {name} in it); `clozeline finetune RUN TRAIN --out "
            f"{folder}` makes one."
        ) from error
    except ValueError as error:
        raise InputError(f"{folder / name} cannot be read ({error}).") from error
    if missing := [key for key in keys if key not in values]:
        raise InputError(f"{folder / name} lacks {', '.join(missing)}; make the folder again.")
    return values
