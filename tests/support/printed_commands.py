"""Commands as README and manual print them, in blocks of code.

$ clozeline fill work/run "The [MASK]."    or .venv/bin/clozeline ..., torchrun ...
The house.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs/manual").glob("*.md"))]


def blocks(text: str) -> list[tuple[str, str]]:
    """The language (or "") and the content of each block of code of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)


def commands(text: str) -> list[str]:
    """The lines of a page that run Clozeline, without prompt, folder and comment."""
    lines = [line for language, block in blocks(text) if not language for line in block.split("\n")]
    found = [
        re.fullmatch(r"(?:\$ |\.venv/bin/)?((?:clozeline|torchrun) .*?)(?: +# .*)?", x)
        for x in lines
    ]
    return [line[1] for line in found if line]
