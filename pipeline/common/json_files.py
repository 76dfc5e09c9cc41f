"""JSON files: whole or absent, sealed with a digest of their content, and one error for a bad one.

write_json(path, {"step": 5}, seal=True)    ->  {"step": 5, "sha256": "ab31..."}
with json_values(path, "delete it") as values:
    step = values["step"]  # 5, or InputError: PATH cannot be read (it has no 'step'); delete it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.common.store import read_file

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
        found = missing or getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read ({found}); {advice}.") from error


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
