"""What differs between a folder's config and the one that a command was given.

{"seed": 0, "pairs": "none"}, {"seed": 3, "pairs": "none"}  ->  ["seed 0 there, 3 now"]
"""

import re
from collections.abc import Mapping
from typing import Any

DIGEST = re.compile("[0-9a-f]{16,}")


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each name in `now` whose value differs; digests are cut short."""
    return [
        f"{name} {_shown(there.get(name))} there, {_shown(value)} now"
        for name, value in now.items()
        if there.get(name) != value
    ]


def _shown(value: Any) -> str:
    is_digest = isinstance(value, str) and DIGEST.fullmatch(value)
    return value[:12] if is_digest else repr(value)
