"""The commands that fine-tune a model and train its baseline."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from clozeline.pipeline.commandline.command import Command, print_next_for, recorded_options
from clozeline.pipeline.commandline.config_options import (
    config_or_usage_error,
    grouped_option,
    options_of,
    typed_path,
)
from clozeline.train.finetuning.config import COLUMNS, FinetuneConfig
from clozeline.train.store.local_folder import Folder

OUT = Folder(writes=True)


@click.command(
    cls=Command,
    example="clozeline finetune work/run train.csv --test test.csv --out work/classifier",
    kept="Trained models are kept; run the same command again with --resume to continue.",
    common=(
        *("test", "resume", "overwrite", "text", "text_pair", "label", "max_seq_length"),
        *("max_examples", "epochs", "batch_size", "learning_rate", "from_scratch"),
        *("baseline", "seeds"),
    ),
)
@click.argument("run", metavar="RUN|HF_DIR|CLASSIFIER", type=Folder())
@click.argument("train", metavar="TRAIN")
@grouped_option("--out", required=True, type=OUT, help="Folder for the classifier.", group="Output")
@grouped_option("--test", help="Labelled test rows. Default: hold out part of TRAIN.", group="Data")
@grouped_option(
    "--also-test", multiple=True, help="More test rows, reported separately.", group="Data"
)
@grouped_option(
    "--resume",
    is_flag=True,
    help="Continue an unfinished comparison, if there is one.",
    group="Output",
)
@grouped_option("--overwrite", is_flag=True, help="Replace an existing classifier.", group="Output")
@options_of(FinetuneConfig)
def finetune(run: Path, train: str, out: Path, **options: Any) -> None:
    """Fine-tune a pretrained model into a text classifier.

    HF_DIR is a BERT or ModernBERT in Hugging Face format, with its tokenizer; of a CLASSIFIER that
    this command wrote, the encoder is trained on. TRAIN and --test are
    Parquet, JSON lines, CSV or TSV files, hf://DATASET or sample:reviews. Test rows are only
    scored; hyperparameters are tuned on training rows only. With few labels, try --prompt and
    --label-words. Under torchrun, the processes train each model together.
    """
    config = config_or_usage_error(FinetuneConfig, options)
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.finetuning.compare import finetune as run_finetuning

    own = {name: options[name] for name in ("test", "also_test", "resume", "overwrite")}
    report = run_finetuning(run, train, out=out, config=config, options=recorded_options(), **own)
    if not is_main_process():
        return
    for line in report.lines():
        click.echo(line)
    done = "" if report.is_new else "already complete: "
    click.echo(f"{done}accuracy {report.finetuned.scores.accuracy:.4f}: {typed_path(out)}")
    print_next_for(out)


@click.command(cls=Command, example="clozeline baseline train.csv --test test.csv --label stars")
@click.argument("train", metavar="TRAIN")
@grouped_option("--test", required=True, help="Labelled test rows.", group="Data")
@options_of(
    FinetuneConfig, leave_out=[f.name for f in fields(FinetuneConfig) if f.name not in COLUMNS]
)
def baseline(train: str, **options: Any) -> None:
    """Train and test the bag-of-words baseline."""
    from clozeline.train.labelled.baseline import baseline as run_baseline

    scores = run_baseline(train, **options)
    for line in scores.table():
        click.echo(line)
    click.echo(f"accuracy {scores.accuracy:.4f}")
