"""Paths as the user gave them, and the last line of a command: the one that usually follows.

    print_next("shards", "SOURCE...", "--tokenizer", "work/tokenizer", "--out", "work/shards")
    ->  Next: clozeline shards SOURCE... --tokenizer work/tokenizer --out work/shards

Words in capitals are to be filled in. A folder of a store is used under another path:

    s3://bucket/run  ->  ~/.cache/clozeline/5f0c.../run    as_given(that) -> "s3://bucket/run"
"""

import shlex
from typing import Any

import click

from clozeline.pipeline.common.folders import KINDS, kind_of
from clozeline.pipeline.common.paths import AnyPath

GIVEN = "clozeline.given"


def note_given(path: object, given: str) -> None:
    """Remember what the user gave for a path, for the rest of the command."""
    click.get_current_context().meta.setdefault(GIVEN, {})[str(path)] = given


def as_given(path: Any) -> str:
    """The path as the user gave it, or else the path itself."""
    context = click.get_current_context(silent=True)
    given: dict[str, str] = context.meta.get(GIVEN, {}) if context else {}
    return given.get(str(path), str(path))


def print_next(*words: object) -> None:
    click.echo(f"Next: {shlex.join(['clozeline', *map(str, words)])}", err=True)


def print_next_for(folder: AnyPath) -> None:
    """Print what follows a data set, a run or a classifier; nothing for another folder."""
    kind = kind_of(folder)
    if kind and (words := KINDS[kind].next.split()):
        names = {"run": beside(folder, "run"), "classifier": beside(folder, "classifier")}
        print_next(*(word.format(folder=as_given(folder), **names) for word in words))


def beside(folder: AnyPath, name: str) -> str:
    """A folder of this name next to another; in the working directory if that is in a store.

    work/shards, "run" -> work/run    work/run, "run" -> work/run-2
    """
    if "://" in as_given(folder):
        return name
    return str(folder.parent / (f"{name}-2" if folder.name == name else name))
