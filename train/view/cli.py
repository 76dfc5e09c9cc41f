"""The command that shows folders in a browser."""

from pathlib import Path

import click

from clozeline.pipeline.commandline.command import Command, grouped_option
from clozeline.pipeline.commandline.config_options import PathOrUrl
from clozeline.pipeline.common.paths import AnyPath
from clozeline.train.store.folder_option import local_copies


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
    from clozeline.train.view.view import kind_of_folder, make_site

    site = make_site(
        [
            folder if kind_of_folder(folder) == "data set" else local_copies([folder])[0]
            for folder in folders
        ]
    )
    if file:
        site.export(file)
        click.echo(file)
        return
    with site.server(port=port) as server:
        click.echo(f"{server.url}  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("", err=True)
