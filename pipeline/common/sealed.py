"""JSON that is sealed with a digest of itself, so that no changed value goes unnoticed.

sealed({"step": 5})  ->  {"step": 5, "sha256": "ab31..."}
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SHA256 = "sha256"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the sha256 of all of them, which replaces an existing one."""
    bare = {name: value for name, value in values.items() if name != SHA256}
    written = json.dumps(bare, sort_keys=True).encode()
    return {**bare, SHA256: hashlib.sha256(written).hexdigest()}


def unsealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without their digest, checked if there is one: earlier versions wrote none.

    Raises ValueError where a value has changed since it was sealed.
    """
    if SHA256 in values:
        check_seal(values)
    return {name: value for name, value in values.items() if name != SHA256}


def check_seal(values: Mapping[str, Any]) -> None:
    """Raises ValueError where a value has changed since it was sealed."""
    if sealed(values)[SHA256] != values.get(SHA256):
        raise ValueError("its content has changed since it was written")
