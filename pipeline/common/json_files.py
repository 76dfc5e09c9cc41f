"""Files of our own: JSON, sealed with a digest of its content, and the sums of a folder's files.

write_json(path, {"step": 5}, seal=True)    ->  {"step": 5, "sha256": "ab31..."}
with json_values(path, "delete it") as values:
    step = values["step"]  # 5, or InputError: PATH cannot be read (it has no 'step'); delete it.

DIR/SHA256SUMS    5e884898da28...  model.safetensors         (`sha256sum --check` reads it, too)
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.errors import InputError, unreadable
from clozeline.pipeline.common.paths import AnyPath, is_file, is_local, read_file, whole_file

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([^\x00]+)")
SHA256 = "sha256"
#: What reading a value out of a damaged file raises.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def write_json(path: AnyPath, values: Mapping[str, Any], *, seal: bool = False) -> None:
    """Write an object, one value per line."""
    values = sealed(values) if seal else values
    with whole_file(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())


def add_to_json(path: AnyPath, values: Mapping[str, Any]) -> None:
    """Add values to the object in a file of our own, which need not be there yet."""
    known = json.loads(path.read_bytes()) if path.exists() else {}
    write_json(path, {**known, **values})


@contextmanager
def json_values(path: AnyPath, advice: str, *, seal: bool = False) -> Iterator[dict[str, Any]]:
    """The object in a file, without its seal, which is checked; `seal` says that it has one.

    Raises InputError as `refuse_malformed` does.
    """
    with refuse_malformed(path, advice):
        yield unsealed(json.loads(read_file(path)), required=seal)


@contextmanager
def refuse_malformed(path: AnyPath, advice: str) -> Iterator[None]:
    """Raises InputError, with the advice, where the block cannot read the file or its values."""
    try:
        yield
    except InputError:
        raise
    except (OSError, *MALFORMED) as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else None
        problem = missing or getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read ({problem}); {advice}.") from error


def json_digest(values: Any) -> str:
    """The BLAKE2b-128 of values as JSON, in hexadecimal."""
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the sha256 of all of them, which replaces an existing one."""
    bare = {name: value for name, value in values.items() if name != SHA256}
    written = json.dumps(bare, sort_keys=True).encode()
    return {**bare, SHA256: hashlib.sha256(written).hexdigest()}


def unsealed(values: Any, *, required: bool = True) -> dict[str, Any]:
    """The object without its seal, which it need not have unless that is required.

    Raises ValueError where there is no object, or where a value has changed since it was sealed.
    """
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    bare = {name: value for name, value in values.items() if name != SHA256}
    if (required or SHA256 in values) and sealed(bare) != values:
        raise ValueError("its content has changed since it was written")
    return bare


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
    paths = [path for name in names for path in (folder / name, *(folder / name).glob("*"))]
    files = sorted(path.relative_to(folder).as_posix() for path in paths if path.is_file())
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
