"""What a folder is, who may write into it, and the error where another kind is needed.

    "work/run"     -> "run"
    "nowhere"      -> nowhere does not exist; check the path.
    "work/thesis"  -> work/thesis is not empty and not a run (thesis.tex); give --out another ...

A command writes only into a folder that is empty or of its own kind. Some kinds are replaced as a
whole: there, files that are not part of them are refused. Hidden files do not make a folder
foreign, but replacing it would remove them, too.
"""

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from clozeline.pipeline.common.errors import InputError, first_names
from clozeline.pipeline.common.paths import (
    AnyPath,
    exists,
    is_file,
    is_local,
    names_in,
    remove_named,
)

LOCK = ".lock"  #: file of `folder_lock.py`


class Kind(NamedTuple):
    marker: str  # the file that makes a folder one of this kind
    description: str
    next: str = ""  # the command that usually follows


#: By name; the first whose marker is there counts.
KINDS = {
    "data set": Kind(
        "manifest.json", "a data set of `clozeline shards`", "pretrain {folder} --out {run}"
    ),
    "run": Kind(
        "run.json",
        "a run of `clozeline pretrain`",
        "finetune {folder} TRAIN.csv --out {classifier}",
    ),
    "classifier": Kind(
        "classifier.json", "a classifier of `clozeline finetune`", "predict {folder} TEXT"
    ),
    "ONNX": Kind("onnx.json", "an ONNX folder of `clozeline export`"),
    "Hugging Face": Kind("config.json", "a model folder in Hugging Face format"),
    "tokenizer": Kind("tokenizer.json", "a tokenizer folder"),
    "results": Kind("finetuned.json", "results of `clozeline finetune` without a classifier"),
}


def kind_of(folder: AnyPath) -> str | None:
    """The key of KINDS whose marker the folder has; None without one.

    Raises StoreError where a store does not say.
    """
    return next((name for name, kind in KINDS.items() if is_file(folder / kind.marker)), None)


def wrong_folder(path: AnyPath, wanted: str) -> InputError:
    """The error for a path that is not `wanted`, such as "a run of `clozeline pretrain`"."""
    if not exists(path):
        return InputError(f"{path} does not exist; check the path.")
    visible = _visible(path)
    if not path.is_dir():
        description = "a file and not a folder"
    elif kind := kind_of(path):
        description = KINDS[kind].description
    else:
        description = f"a folder of {first_names(visible)}" if visible else "an empty folder"
    return InputError(f"{path} is {description}; give {wanted}.")


def check_kind(out: AnyPath, kind: str, *, is_own: bool) -> None:
    """Raises InputError for a file, and for a folder that is neither empty nor `kind` ("a run")."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give --out a folder.")
    visible = _visible(out)
    if visible and not is_own:
        raise InputError(
            f"{out} is not empty and not {kind} ({first_names(visible)}); "
            "give --out another folder."
        )


def check_replaceable(out: Path, kind: str, *, own: Iterable[str]) -> None:
    """Raises InputError where replacing the folder would remove files that match no `own` pattern.

    Patterns are those of fnmatch, for paths relative to the folder: "config.json", "step-*/*".
    """
    patterns = (LOCK, *own)
    files = [path for path in out.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = sorted(path.relative_to(out).as_posix() for path in files)
    foreign = [name for name in names if not any(fnmatch(name, own) for own in patterns)]
    if foreign:
        raise InputError(
            f"{out} holds files that are not part of {kind} ({first_names(foreign)}), and "
            "replacing it would remove them; move them, or give --out another folder."
        )


def remove_files(folder: AnyPath, names: Iterable[str]) -> None:
    """Remove files of a folder, and the folder itself if nothing else is in it."""
    remove_named(folder, names_in(folder).intersection(names))
    if folder.exists() and not names_in(folder) and not (is_local(folder) and folder.is_symlink()):
        with suppress(OSError):  # another process wrote into it, or removed it
            folder.rmdir()


def _visible(folder: AnyPath) -> list[str]:
    return sorted(name for name in names_in(folder) if not name.startswith("."))
