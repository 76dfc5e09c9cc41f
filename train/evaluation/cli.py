"""The command `evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from clozeline.pipeline.commandline.command import Command
from clozeline.pipeline.commandline.config_options import (
    AT_LEAST_ONE,
    LocalPath,
    PathOrUrl,
    option,
    options_of,
)
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.train.store.local_folder import Folder


@dataclass(frozen=True)
class EvaluateOptions:
    """What is measured, and where the result goes."""

    split: Literal["validation", "train"] = option(
        "validation", "Evaluate on held-out or on training examples.", group="Data"
    )
    batch_size: int = option(64, "Examples per forward pass.", group="Data", type=AT_LEAST_ONE)
    limit: int | None = option(None, "Maximum number of examples.", group="Data", type=AT_LEAST_ONE)
    json: Path | None = option(
        None,
        "Also write the results to this file.",
        group="Output",
        type=LocalPath(),
    )


@click.command(cls=Command, example="clozeline evaluate work/run work/shards")
@click.argument("run", type=Folder())
@click.argument("shards", metavar="SHARDS", type=PathOrUrl())
@options_of(EvaluateOptions)
def evaluate(run: Path, shards: Path, json: Path | None, **options: Any) -> None:
    """Measure the loss and accuracy of a run on a data set."""
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.evaluation.evaluate import as_table
    from clozeline.train.evaluation.evaluate import evaluate as run_evaluation

    if json:
        _check_json(json)
    result = run_evaluation(run, shards, **options)
    if not is_main_process():
        return
    for line in as_table(result, split=options["split"]):
        click.echo(line)
    if json:
        write_json(json, result.to_dict())
    print_next_for(run)


def _check_json(file: Path) -> None:
    """Raises InputError where no results can be written, or other values would be replaced."""
    if file.exists() and not file.is_file():
        raise InputError(f"--json {file} is a folder, device or pipe; give the name of a file.")
    if not file.parent.is_dir():
        raise InputError(f"--json {file}: there is no folder {file.parent}; make it first.")
    if file.exists() and file.stat().st_size:
        with json_values(file, "give another --json") as values:
            if "mlm_loss" not in values:
                raise InputError(
                    f"--json {file} exists and has no results of `clozeline evaluate`; give "
                    "another name."
                )
