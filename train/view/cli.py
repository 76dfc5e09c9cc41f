"""The commands that show folders in a browser: a live page, and a report in one file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from clozeline.pipeline.commandline.command import Command, grouped_option
from clozeline.pipeline.commandline.config_options import PathOrUrl
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.paths import AnyPath
from clozeline.train.store.folder_option import local_copies

if TYPE_CHECKING:
    from clozeline.pipeline.view.site import Site


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
    type=click.Path(path_type=Path),
    help="Write one static page to this file instead.",
    group="Output",
)
def view(folders: tuple[AnyPath, ...], port: int, file: Path | None) -> None:
    """Browse a data set, runs and a classifier in a web browser.

    Examples as coloured tokens, with search; what a run learned, step by step; its curves, also
    while it trains; and forms to fill masks and classify texts. The page is only for this machine
    (127.0.0.1) and loads nothing from the network. Ctrl-C ends it.
    """
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

    It is FOLDER/report.html.

    Several folders share the page of the first: up to four runs are compared. For a data set, also
    a data set card for the Hugging Face Hub, SHARDS/README.md; an edited card is kept.
    """
    from clozeline.pipeline.report.dataset_card import CARD, write_card
    from clozeline.pipeline.view.site import REPORT
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
        [
            folder if shown_kind(folder) == "data set" else local_copies([folder])[0]
            for folder in folders
        ]
    )
