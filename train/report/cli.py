"""The commands that show folders: examples in a terminal, and pages for a browser.

{"data set": [work/shards], "run": [work/run], "classifier": []}  ->  HTML with two chapters

A data set alone needs no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from clozeline.pipeline.commandline.command import Command, print_next_for
from clozeline.pipeline.commandline.config_options import PathOrUrl, grouped_option
from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.errors import InputError, check_packages, escaped
from clozeline.pipeline.common.folders import kind_of, wrong_folder
from clozeline.pipeline.common.paths import AnyPath, is_local, whole_file
from clozeline.pipeline.dataset.manifest import REPORT, TOKENIZER, read_manifest
from clozeline.train.store.local_folder import local_copy

#: How many folders of each kind a page can show together.
MOST_FOLDERS = {"data set": 1, "run": 4, "classifier": 1}
FOLDERS = click.argument(
    "folders", metavar="SHARDS|RUN|CLASSIFIER...", nargs=-1, required=True, type=PathOrUrl()
)


@click.command(cls=Command, example="clozeline inspect work/shards -n 5")
@click.argument("folder", metavar="SHARDS|RUN|TOKENIZER", type=PathOrUrl())
@click.argument("text", required=False, metavar="[TEXT]")
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
@grouped_option("--shards", type=PathOrUrl(), help="The data set of the run.", group="Run")
def inspect(folder: AnyPath, text: str | None, number: int, seed: int, **of_run: Any) -> None:
    """Show random examples in readable form.

    With a TEXT: the tokens that the tokenizer cuts it into. For a run, --shards and --steps show
    the examples that it read: the same ones on any number of processes. Documents are named by the
    first 16 digits of their hashes.
    """
    import shutil

    from clozeline.pipeline.report.inspect import inspect_dataset

    if text is not None:
        _print_tokens(folder, text)
        return
    width = min(shutil.get_terminal_size().columns, 100)
    if kind_of(folder) == "run":
        if seed:
            raise InputError("--seed chooses rows of a data set; leave it out for a run.")
        from clozeline.train.report.read_steps import step_lines

        if None in of_run.values():
            raise click.UsageError("for a run, give --shards and --steps A-B.")
        lines = step_lines(local_copy(folder), **of_run, number=number, width=width)
    elif kind_of(folder) == "tokenizer":
        raise InputError(
            f"{folder} is a tokenizer folder; give a data set of `clozeline shards`, or add a TEXT "
            "to see its tokens."
        )
    elif any(of_run.values()):
        raise wrong_folder(folder, "a run of `clozeline pretrain`")
    else:
        lines = inspect_dataset(folder, number=number, seed=seed, width=width)
    for line in lines:
        click.echo(escaped(line))
    print_next_for(folder)


def _print_tokens(folder: AnyPath, text: str) -> None:
    """The tokens of a text with their ids, a line each; of a data set or run, by its tokenizer."""
    from clozeline.pipeline.tokenization.tokenizer import load_tokenizer

    own = folder / TOKENIZER
    tokenizer = load_tokenizer(own if own.is_dir() else folder)
    [ids] = tokenizer.encode_batch([text])
    for number in ids:
        click.echo(f"{number:>7}  {escaped(tokenizer.shown_tokens[number])}")
    click.echo(f"{counted(len(ids), 'token')} of {counted(len(text.split()), 'word')}")


@click.command(cls=Command, example="clozeline report work/run")
@FOLDERS
@grouped_option("--out", type=PathOrUrl(), help="Write the page to this file.", group="Output")
def report(folders: tuple[AnyPath, ...], out: AnyPath | None) -> None:
    """Write a page about a data set, runs and a classifier.

    A data set: examples, statistics, what was dropped. Runs: curves, warnings, comparison. A
    classifier: scores, label efficiency, calibration, mistakes. The page is one self-contained
    file, report.html in the first folder.
    """
    from clozeline.pipeline.report.page import check_page_file

    by_kind = sorted_by_kind(folders)
    page = out or folders[0] / REPORT
    check_page_file(page)
    html = page_of(by_kind, title=_title(folders))
    with whole_file(page) as file:
        file.write(html.encode())
    click.echo(page)
    print_next_for(folders[0])


@click.command(cls=Command, example="clozeline view work/shards work/run")
@FOLDERS
@grouped_option(
    "--port",
    default=0,
    type=click.IntRange(min=0, max=65535),
    help="Port of the page.  [default: a free one]",
    group="Output",
)
def view(folders: tuple[AnyPath, ...], port: int) -> None:
    """Serve the page of `clozeline report`, updated at each reload.

    Only for the browsers of this machine (127.0.0.1). Ctrl-C ends it.
    """
    from clozeline.pipeline.report.page import page_server

    by_kind, title = sorted_by_kind(folders), _title(folders)
    page_of(by_kind, title=title)  # what cannot be shown is reported here
    server = page_server(lambda: page_of(by_kind, title=title), port=port)
    click.echo(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)")
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


def _title(folders: tuple[AnyPath, ...]) -> str:
    """The names of the folders, without their paths: a report may be published."""
    return ", ".join(
        folder.resolve().name if is_local(folder) else folder.name for folder in folders
    )


def sorted_by_kind(folders: Iterable[AnyPath]) -> dict[str, list[Any]]:
    """The folders by the keys of MOST_FOLDERS; runs and classifiers of a store as local copies.

    Raises InputError for another folder, or for too many of a kind.
    """
    by_kind: dict[str, list[Any]] = {kind: [] for kind in MOST_FOLDERS}
    for folder in folders:
        kind = kind_of(folder)
        if kind not in MOST_FOLDERS:
            raise wrong_folder(folder, "a data set, a run or a classifier")
        by_kind[kind].append(folder if kind == "data set" else local_copy(folder))
    for kind, most in MOST_FOLDERS.items():
        if len(by_kind[kind]) > most:
            raise InputError(
                f"{len(by_kind[kind])} folders are a {kind}; a page shows at most {most}."
            )
    return by_kind


def page_of(by_kind: Mapping[str, Sequence[Any]], *, title: str) -> str:
    """The page as its folders are now. Raises InputError for what cannot be read."""
    check_packages("a report", "jinja2", "matplotlib")
    from clozeline.pipeline.report.page import Chapter, html_page

    chapters: list[Chapter] = []
    for folder in by_kind["data set"]:
        from clozeline.pipeline.report.dataset_chapter import dataset_chapter

        chapters.append(dataset_chapter(folder, read_manifest(folder).dataset_digest))
    if by_kind["run"]:
        from clozeline.train.report.run_chapter import run_chapter

        chapters.append(run_chapter(by_kind["run"]))
    for folder in by_kind["classifier"]:
        from clozeline.train.report.classifier_chapter import classifier_chapter

        chapters.append(classifier_chapter(folder))
    return html_page(title, chapters)
