"""The command `evaluate`."""

from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any, Literal

import click

from clozeline.pipeline.commandline.command import Command, print_next_for
from clozeline.pipeline.commandline.config_options import (
    AT_LEAST_ONE,
    PathOrUrl,
    option,
    options_of,
)
from clozeline.train.store.local_folder import Folder


@dataclass(frozen=True)
class EvaluateOptions:
    """What is measured, and where the result goes."""

    split: Literal["validation", "train"] = option(
        "validation", "Evaluate on held-out or on training examples.", group="Data"
    )
    batch_size: int = option(64, "Examples per forward pass.", group="Data", type=AT_LEAST_ONE)
    limit: int | None = option(None, "Maximum number of examples.", group="Data", type=AT_LEAST_ONE)
    json: bool = option(False, "Print the results as JSON.", group="Output", is_flag=True)


@click.command(cls=Command, example="clozeline evaluate work/run work/shards")
@click.argument("run", type=Folder())
@click.argument("shards", metavar="SHARDS", type=PathOrUrl())
@options_of(EvaluateOptions)
def evaluate(run: Path, shards: Path, json: bool, **options: Any) -> None:
    """Measure the loss and accuracy of a run on a data set."""
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.evaluation.evaluate import as_table
    from clozeline.train.evaluation.evaluate import evaluate as run_evaluation

    result = run_evaluation(run, shards, **options)
    if not is_main_process():
        return
    lines = [dumps(result.to_dict())] if json else as_table(result, split=options["split"])
    for line in lines:
        click.echo(line)
    print_next_for(run)
