"""The command that fine-tunes one model on many tasks."""

from pathlib import Path
from typing import Any

import click

from clozeline.pipeline.commandline.command import Command, print_next_for
from clozeline.pipeline.commandline.config_options import (
    LocalPath,
    config_or_usage_error,
    grouped_option,
    options_of,
    typed_path,
)
from clozeline.pipeline.common.config_checks import counted
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.store.local_folder import Folder

#: Options that the tasks decide, or that need a single table.
TASK = ("text", "text_pair", "label", "label_efficiency", "prompt", "label_words")


@click.command(
    cls=Command,
    example="clozeline benchmark work/run tasks.toml --out work/tasks",
    kept="Trained models are kept; run the same command again, without --overwrite, to continue.",
)
@click.argument("run", metavar="RUN|HF_DIR", type=Folder())
@click.argument("tasks", metavar="TASKS.toml", type=LocalPath())
@grouped_option(
    "--out", required=True, type=Folder(writes=True), help="Results of all tasks.", group="Output"
)
@grouped_option("--overwrite", is_flag=True, help="Repeat finished tasks.", group="Output")
@options_of(FinetuneConfig, leave_out=TASK)
def benchmark(run: Path, tasks: Path, out: Path, overwrite: bool, **options: Any) -> None:
    """Fine-tune a pretrained model on several tasks, such as GLUE's.

    TASKS.toml has a table per task: [name], train, test, text, text_pair, label, metrics,
    and start, a task above it from whose classifier it starts.
    """
    config = config_or_usage_error(FinetuneConfig, options)
    from clozeline.train.benchmark import benchmark as of_tasks

    read = of_tasks.read_tasks(tasks)
    scores = of_tasks.benchmark(run, read, out=out, config=config, overwrite=overwrite)
    click.echo("\n".join(of_tasks.as_table(scores)))
    click.echo(f"{counted(len(read), 'task')}: {typed_path(out)}")
    print_next_for(run)
