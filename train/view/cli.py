"""The commands that show folders in a browser: a live page, and a report in one file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clozeline.pipeline.commandline.command import Command, grouped_option
from clozeline.pipeline.commandline.config_options import PathOrUrl
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.errors import InputError, escaped
from clozeline.pipeline.common.folder_kind import kind_of, wrong_folder
from clozeline.pipeline.common.paths import AnyPath
from clozeline.train.store.folder_option import local_copy

if TYPE_CHECKING:
    from clozeline.pipeline.view.site import Site


@click.command(cls=Command, example="clozeline inspect work/shards -n 5")
@click.argument("folder", metavar="SHARDS|RUN", type=PathOrUrl())
@grouped_option(
    "-n",
    "number",
    default=3,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of examples; of a run, from each step.",
    group="Examples",
)
@grouped_option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**63 - 1),
    help="Random seed.",
    group="Examples",
)
@grouped_option("--steps", metavar="A-B", help="The steps of a run to show.", group="Run")
@grouped_option(
    "--document",
    metavar="HASH",
    help="Show which steps of a run read this document: the first 16 digits of its hash.",
    group="Run",
)
@grouped_option("--shards", type=PathOrUrl(), help="The data set of the run.", group="Run")
@grouped_option(
    "--source",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="Find the documents in this text; repeatable.",
    group="Run",
)
def inspect(folder: AnyPath, number: int, seed: int, **of_run: Any) -> None:
    """Show random examples in readable form.

    For a run, --shards with --steps or --document shows the examples that it read. A step has the
    same ones on any number of processes. Documents are named by the first 16 digits of their
    hashes.
    """
    import shutil

    from clozeline.pipeline.report.inspect import inspect_dataset

    width = min(shutil.get_terminal_size().columns, 100)
    if kind_of(folder) == "run":
        if seed:
            raise InputError("--seed chooses rows of a data set; leave it out for a run.")
        lines = _lines_of_run(local_copy(folder), number, width, **of_run)
    elif any(of_run.values()):
        raise wrong_folder(folder, "a run of `clozeline pretrain`")
    else:
        lines = inspect_dataset(folder, number=number, seed=seed, width=width)
    for line in lines:
        click.echo(escaped(line))
    print_next_for(folder)


def _lines_of_run(
    run: Path,
    number: int,
    width: int,
    *,
    steps: str | None,
    document: str | None,
    shards: AnyPath | None,
    sources: tuple[str, ...],
) -> Iterator[str]:
    from clozeline.train.view.read_steps import (
        ReadSteps,
        document_lines,
        parse_steps,
        step_lines,
    )

    if shards is None or (steps is None and document is None):
        raise click.UsageError("for a run, give --shards, and --steps A-B or --document HASH.")
    read = ReadSteps(run, shards)
    first, last = read.first_step, read.last_step
    chosen = parse_steps(steps or f"{first}-{last}", first, last)
    if document is not None:
        return document_lines(read, document, chosen, sources)
    return step_lines(read, chosen, number=number, width=width, sources=sources)


@click.command(cls=Command, example="clozeline view work/shards work/run")
@click.argument(
    "folders", metavar="SHARDS|RUN|CLASSIFIER...", nargs=-1, required=True, type=PathOrUrl()
)
@grouped_option(
    "--port",
    default=0,
    type=click.IntRange(min=0, max=65535),
    help="Port of the page.  [default: a free one]",
    group="Output",
)
@grouped_option(
    "--export",
    "file",
    type=PathOrUrl(),
    help="Write one static page to this file instead.",
    group="Output",
)
def view(folders: tuple[AnyPath, ...], port: int, file: AnyPath | None) -> None:
    """Browse a data set, runs and a classifier in a web browser.

    Examples as coloured tokens, with search; a run's curves, also while it trains; a classifier's
    scores and predictions. The page is only for this machine (127.0.0.1) and loads nothing from the
    network. Ctrl-C ends it.
    """
    if file and port:
        raise InputError("--port is for the live page; leave it out with --export.")
    site = _site(folders)
    if file:
        site.export(file)
        click.echo(file)
        return
    site.server(port=port).run_until_signal(lambda url: click.echo(f"{url}/  (Ctrl-C ends it)"))


@click.command(cls=Command, example="clozeline report work/run")
@click.argument(
    "folders", metavar="SHARDS|CLASSIFIER|RUN...", nargs=-1, required=True, type=PathOrUrl()
)
@grouped_option(
    "--out", type=PathOrUrl(), help="Write only the HTML page, to this file.", group="Output"
)
def report(folders: tuple[AnyPath, ...], out: AnyPath | None) -> None:
    """Write the pages of `clozeline view` to one HTML file.

    The file is report.html in the folder. Several folders share the page of the first one: up to
    four runs are compared. A data set also gets a card for the Hugging Face Hub, SHARDS/README.md;
    an edited card is kept.
    """
    from clozeline.pipeline.dataset.manifest import CARD, REPORT
    from clozeline.pipeline.report.dataset_card import write_card
    from clozeline.train.view.view import shown_kind

    data_sets = [folder for folder in folders if shown_kind(folder) == "data set"]
    cards = [] if out else [folder / CARD for folder in data_sets]
    written = [out or folders[0] / REPORT]
    _site(folders).export(written[0])
    for card in cards:
        if write_card(card.parent):
            written.append(card)
        else:
            click.echo(f"warning: {card} was edited and is kept", err=True)
    click.echo(" and ".join(map(str, written)))
    print_next_for(folders[0])


def _site(folders: tuple[AnyPath, ...]) -> "Site":
    """The pages; a run or a classifier in a store is copied first."""
    from clozeline.train.view.view import make_site, shown_kind

    return make_site(
        [folder if shown_kind(folder) == "data set" else local_copy(folder) for folder in folders]
    )
