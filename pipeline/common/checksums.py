"""The sha256 of each file of a folder, in a file that `sha256sum --check SHA256SUMS` reads, too.

DIR/SHA256SUMS    5e884898da28...  model.safetensors
                  8d969eef6eca...  tokenizer/vocab.txt
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from clozeline.pipeline.common.errors import InputError, unreadable
from clozeline.pipeline.common.paths import AnyPath, is_local
from clozeline.pipeline.common.store import is_file, read_file

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([^\x00]+)")


def file_sha256(path: AnyPath) -> str:
    if not is_local(path):
        return hashlib.sha256(read_file(path)).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums_of(contents: Mapping[str, bytes]) -> bytes:
    """The content of SHA256SUMS for files that are still to be written."""
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    return "".join(lines).encode()


def write_sums(folder: Path, names: Collection[str]) -> None:
    """Write the sums of the named files that exist, and of the files in named folders."""
    found = [path for name in names for path in (folder / name, *(folder / name).glob("*"))]
    files = sorted(path.relative_to(folder).as_posix() for path in found if path.is_file())
    lines = [f"{file_sha256(folder / name)}  {name}\n" for name in files]
    (folder / SUMS).write_text("".join(lines), "utf-8")


def check_sums(folder: AnyPath, names: Collection[str] | None = None) -> None:
    """Raises InputError where a file is not what was written; a folder without sums is accepted.

    Checks all files that have a sum, or those of `names`.
    """
    if not is_file(folder / SUMS):  # not written by us
        return
    text = read_file(folder / SUMS).decode("utf-8", "replace")
    lines = [LINE.fullmatch(line) for line in text.removesuffix("\n").split("\n")]
    if not text or None in lines:
        raise InputError(f"{folder / SUMS} cannot be read (it is damaged); make {folder} again.")
    sums = {line[2]: line[1] for line in lines if line}
    for name in sums if names is None else names:
        try:
            is_same = file_sha256(folder / name) == sums.get(name)
        except OSError as error:
            raise unreadable(folder / name, error) from error
        if not is_same:
            raise InputError(
                f"{folder / name} cannot be read (its content is not that of {SUMS}); restore it, "
                f"or delete {folder / SUMS} if you changed it yourself."
            )
