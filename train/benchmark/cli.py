"""The command that fine-tunes one model on many tasks."""

from pathlib import Path
from typing import Any

import click

from clozeline.pipeline.commandline.command import Command, grouped_option
from clozeline.pipeline.commandline.config_options import config_or_usage_error, options_of
from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.units import counted
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.store.folder_option import Folder

LOCAL = click.Path(path_type=Path)
OUT = Folder(writes=True)
PROMPT = ("prompt", "label_words")
#: Options that the tasks decide, or that need a single table.
OF_A_TASK = ("text", "text_pair", "label", "test_share", "label_efficiency", *PROMPT)


@click.command(
    cls=Command, example="clozeline benchmark work/run glue/CoLA glue/SST-2 --out work/glue"
)
@click.argument("run", metavar="RUN|HF_DIR", type=Folder())
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True, type=LOCAL)
@grouped_option(
    "--out", required=True, type=OUT, help="Folder for the results of all tasks.", group="Output"
)
@grouped_option("--overwrite", is_flag=True, help="Repeat finished tasks.", group="Output")
@options_of(FinetuneConfig, leave_out=OF_A_TASK)
def benchmark(
    run: Path, tasks: tuple[Path, ...], out: Path, overwrite: bool, **options: Any
) -> None:
    """Fine-tune a pretrained model on several tasks, such as GLUE's.

    A TASK is a folder as GLUE distributes it (CoLA, SST-2, ...), a folder of such folders, or a
    .toml file with a table per task: [name], train, test, text, text_pair, label, metrics.
    """
    config = config_or_usage_error(FinetuneConfig, options)
    from clozeline.train.artifacts.pretrained import load_pretrained
    from clozeline.train.benchmark.benchmark import as_table
    from clozeline.train.benchmark.benchmark import benchmark as run_benchmark
    from clozeline.train.benchmark.tasks import read_tasks

    load_pretrained(run)  # what it refuses is refused before GLUE's tables are written
    found = read_tasks(tasks, out=out)
    results = run_benchmark(run, found, out=out, config=config, overwrite=overwrite)
    for line in as_table(results):
        click.echo(line)
    click.echo(f"{counted(len(found), 'task')}: {as_given(out)}")
    print_next_for(run)
