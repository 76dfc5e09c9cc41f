"""The last line of a command: the command that usually follows, on standard error.

    print_next("shards", "SOURCE...", "--tokenizer", "work/tokenizer", "--out", "work/shards")
    ->  Next: clozeline shards SOURCE... --tokenizer work/tokenizer --out work/shards

Words in capitals are to be filled in.
"""

import shlex

import click

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.folders import KINDS, kind_of
from clozeline.pipeline.common.paths import AnyPath


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
