"""A text file whose last line is a digest of the lines above it, by which an edited one is known.

# Card                                       # My card
<!-- clozeline report 3f5c... -->            <!-- clozeline report 3f5c... -->      edited
"""

import hashlib
import re

from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.store import exists

SIGNATURE = re.compile(r"(.*)<!-- clozeline [a-z]+ ([0-9a-f]{64}) -->\n", re.DOTALL)


def signed(text: str, command: str) -> str:
    """The text with its last line, which names the command that writes it."""
    return f"{text}<!-- clozeline {command} {_digest(text)} -->\n"


def is_edited(path: AnyPath) -> bool:
    """Whether there is a file that `signed` did not return."""
    if not exists(path):
        return False
    found = SIGNATURE.fullmatch(path.read_text(encoding="utf-8", errors="replace"))
    return found is None or _digest(found[1]) != found[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
