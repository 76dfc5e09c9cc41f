"""Who owns an output folder? A command writes only into one that is empty or of its own kind.

    work/thesis    thesis.tex               "work/thesis is not empty and not a run (thesis.tex)"
    work/run       run.json, notes.txt      a run: it is continued, and notes.txt stays
    work/export    config.json, notes.txt   replaced as a whole: refused, for notes.txt would go

Hidden files do not make a folder foreign, but replacing it would remove them, too.
"""

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import LOCK
from clozeline.pipeline.common.paths import AnyPath, is_local, names_in, remove_named


def check_kind(out: AnyPath, kind: str, *, is_own: bool) -> None:
    """Raises InputError for a file, and for a folder that is neither empty nor `kind` ("a run")."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give --out a folder.")
    visible = sorted(name for name in names_in(out) if not name.startswith("."))
    if visible and not is_own:
        raise InputError(
            f"{out} is not empty and not {kind} ({first_names(visible)}); "
            "give --out another folder."
        )


def check_replaceable(out: Path, kind: str, *, own: Iterable[str]) -> None:
    """Raises InputError where replacing the folder would remove files that match no `own` pattern.

    Patterns are those of fnmatch, for paths relative to the folder: "config.json", "results/*".
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


def first_names(names: list[str]) -> str:
    """The first three, for a message: "a.txt, b.txt, c.txt, ..."."""
    return ", ".join(names[:3]) + (", ..." if names[3:] else "")
