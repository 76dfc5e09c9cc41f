"""Commands as README and manual print them, in blocks of code.

$ clozeline fill work/run "The [MASK]."    or .venv/bin/clozeline ..., torchrun ...
The house.
"""

import re
import shlex
from pathlib import Path

import click

from clozeline.train.cli import main

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


def parse(line: str) -> click.Context:
    """The context of a command line, parsed and not run."""
    words = shlex.split(line.partition(" -- ")[0])
    if "torchrun" in words[0]:
        words = words[words.index("clozeline") :]
    words = words[1:]
    command = main.commands[words[0]]
    # Under its group, from which it takes -h.
    group = click.Context(main, **main.context_settings)
    return command.make_context(words[0], words[1:], parent=group)
