"""The command `evaluate`."""

from pathlib import Path

import click

from clozeline.pipeline.commandline.command import Command, grouped_option
from clozeline.pipeline.commandline.config_options import PathOrUrl
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.json_files import write_json
from clozeline.train.store.folder_option import Folder


@click.command(cls=Command, example="clozeline evaluate work/run work/shards")
@click.argument("run", type=Folder())
@click.argument("shards", metavar="SHARDS", type=PathOrUrl())
@grouped_option(
    "--split",
    default="validation",
    show_default=True,
    type=click.Choice(["validation", "train"]),
    help="Evaluate on held-out or on training examples.",
    group="Data",
)
@grouped_option(
    "--batch-size",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Examples per forward pass.",
    group="Data",
)
@grouped_option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of examples.", group="Data"
)
@grouped_option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Also write the results to this file.",
    group="Output",
)
def evaluate(
    run: Path,
    shards: Path,
    split: str,
    batch_size: int,
    limit: int | None,
    json_file: Path | None,
) -> None:
    """Measure the loss and accuracy of a run on a data set."""
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.evaluation.evaluate import as_table, evaluate_run

    result = evaluate_run(run, shards, split=split, batch_size=batch_size, limit=limit)
    if not is_main_process():
        return
    for line in as_table(result, split=split):
        click.echo(line)
    if json_file:
        write_json(json_file, result.to_dict())
    print_next_for(run)
