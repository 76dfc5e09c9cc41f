"""`clozeline`: all commands, in data-flow order."""

import errno
import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from model.config import PRESETS, BertConfig
from pipeline.cli import FOLDER, inspect, shards, tokenizer, verify
from pipeline.common.config_options import config_or_usage_error, options_of
from pipeline.common.errors import ClozelineError, InputError
from train.config import PretrainConfig
from train.finetuning.config import FinetuneConfig

LOCAL = click.Path(path_type=Path)

# Operating system errors that the user can fix: the disk is full, a folder is read-only.
FIXABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR),
)


def failure(message: str, exit_code: int) -> click.ClickException:
    """Ends the command with one line and an exit code."""
    exception = click.ClickException(message)
    exception.exit_code = exit_code  # type: ignore[misc]  # click itself sets it per instance
    return exception


class InOrder(click.Group):
    """Lists commands in order of declaration; reports expected errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In order of declaration, not alphabetical."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except ClozelineError as error:
            raise failure(str(error), error.exit_code) from error
        except OSError as error:
            if error.errno not in FIXABLE:
                raise
            where = f"{error.filename}: " if error.filename else ""
            message = f"{where}{error.strerror}. Fix this and rerun the command."
            raise failure(message, InputError.exit_code) from error


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="clozeline", message="%(prog)s %(version)s")
def main() -> None:
    """Pretrain BERT from raw text, then fine-tune it.

    The commands are listed in data-flow order.
    """


for command in (tokenizer, shards, inspect):
    main.add_command(command)


@main.command("verify", params=[*verify.params], help=verify.help)
@click.option(
    "--loader",
    is_flag=True,
    help="Also check that training reads each example exactly once per epoch.",
)
@click.pass_context
def verify_with_loader(context: click.Context, /, loader: bool, **options: Any) -> None:
    """The checks of the pipeline, and those of the loader."""
    context.invoke(verify, **options)
    if loader:
        from train.data.loader_check import check_loader

        click.echo(check_loader(options["folder"]))


@main.command()
@click.argument("folders", metavar="SHARDS|RUN...", nargs=-1, required=True, type=FOLDER)
@click.option("--out", type=FOLDER, help="Write only the HTML page, to this file.")
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write an HTML report on a data set or on training runs.

    For a data set: SHARDS/report.html, and a data set card for the Hugging Face Hub,
    SHARDS/README.md. An edited card is kept. For a run: RUN/report.html. Up to four runs are
    compared in the report of the first.
    """
    from pipeline.dataset.manifest import MANIFEST
    from pipeline.report.dataset_report import write_report

    # Checked before torch is imported: a pipeline host may have none.
    is_run, is_dataset = ((folders[0] / name).exists() for name in ("run.json", MANIFEST))
    if is_run or len(folders) > 1:
        from train.monitoring.run_report import write_run_report

        click.echo(write_run_report(folders, out=out))
        return
    if folders[0].is_dir() and not is_dataset:
        raise InputError(
            f"{folders[0]} is neither a finished data set (it has no {MANIFEST}) nor a run (no "
            "run.json); give a folder made by `clozeline shards` or `clozeline pretrain`."
        )
    written = write_report(folders[0], out=out)
    if out is None and written.card is None:
        click.echo(f"warning: {folders[0] / 'README.md'} was edited and is kept", err=True)
    click.echo(" and ".join(str(path) for path in (written.page, written.card) if path))


@main.command()
@click.argument("folder", metavar="SHARDS", type=FOLDER)
@click.option("--out", required=True, type=LOCAL, help="Folder for the run.")
@click.option(
    "--preset", default="nano", show_default=True, help=f"Model architecture: {', '.join(PRESETS)}."
)
@click.option("--dropout", type=float, help="Dropout probability; overrides the preset.")
@click.option(
    "--resume", is_flag=True, help="Continue from the latest checkpoint, if there is one."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@click.option(
    "--start-from", type=LOCAL, help="Start from the weights and optimizer state of this run."
)
@click.option("--init", type=LOCAL, help="Start from the weights of this Hugging Face folder.")
@options_of(PretrainConfig)
def pretrain(
    folder: Path,
    out: Path,
    preset: str,
    dropout: float | None,
    resume: bool,
    overwrite: bool,
    start_from: Path | None,
    init: Path | None,
    **options: Any,
) -> None:
    """Pretrain a model on shards, in one process or under torchrun.

    With --start-from or --init, the architecture is that of the given run or folder, unless
    --preset is given as well.
    """
    if start_from and init:
        raise click.UsageError("--start-from and --init exclude each other; give one.")
    training = config_or_usage_error(PretrainConfig, options)
    from train.engine.distributed import is_main_process
    from train.pretraining.evaluate import as_table
    from train.pretraining.pretrain import pretrain as run_pretraining

    model = _chosen_model(folder, preset, dropout=dropout, start_from=start_from, init=init)
    outcome = run_pretraining(
        folder,
        out=out,
        model=model,
        training=training,
        resume=resume,
        overwrite=overwrite,
        start_from=start_from,
        init=init,
    )
    if not is_main_process():
        return
    for line in as_table(outcome.heldout) if outcome.heldout else ():
        click.echo(line)
    budget = f"in {training.for_}" if training.for_ else f"of {training.max_steps}"
    reached = f"step {outcome.step} {budget}"
    if not outcome.is_complete:
        click.echo(f"Stopped at {reached}; checkpoint saved in {out}. Add `--resume` to continue.")
        return
    done = "" if outcome.is_new else "already complete: "
    click.echo(f"{done}{reached}: {out}")


def _chosen_model(
    folder: Path,
    preset: str,
    *,
    dropout: float | None,
    start_from: Path | None,
    init: Path | None,
) -> BertConfig:
    """The preset; without --preset the architecture of the run or folder training starts from."""
    from pipeline.dataset.manifest import read_manifest
    from train.artifacts.run import model_config, model_of
    from train.pretraining.initial_weights import initial_config

    source = click.get_current_context().get_parameter_source("preset")
    is_given = source is not ParameterSource.DEFAULT
    if init:
        return initial_config(init, preset_name=preset if is_given else None, dropout=dropout)
    if start_from and not is_given:
        return model_of(start_from, dropout=dropout)
    return model_config(preset, read_manifest(folder), dropout=dropout)


@main.command()
@click.argument("run", type=LOCAL)
@click.argument("folder", metavar="SHARDS", type=FOLDER)
@click.option(
    "--split",
    default="validation",
    show_default=True,
    type=click.Choice(["validation", "train"]),
    help="Evaluate on held-out or on training examples.",
)
@click.option(
    "--batch-size",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Examples per forward pass.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of examples.")
@click.option("--ngrams", is_flag=True, help="Also measure bigrams and trigrams; takes minutes.")
@click.option(
    "--ngram-tokens",
    default=100_000_000,
    show_default=True,
    type=click.IntRange(min=3),
    help="Maximum number of training tokens to count n-grams in.",
)
@click.option("--json", "json_file", type=LOCAL, help="Also write the results to this file.")
def evaluate(
    run: Path,
    folder: Path,
    split: str,
    batch_size: int,
    limit: int | None,
    ngrams: bool,
    ngram_tokens: int,
    json_file: Path | None,
) -> None:
    """Measure the loss and accuracy of a run on a data set.

    With --ngrams, the masked-LM loss is compared with Kneser-Ney bigrams and trigrams, counted in
    the training shards.
    """
    if ngrams and split == "train":
        raise click.UsageError("--ngrams counts the training examples; use --split validation.")
    from train.engine.distributed import is_main_process
    from train.pretraining.evaluate import as_table, evaluate_run
    from train.pretraining.ngram_loss import ngram_losses

    result = evaluate_run(run, folder, split=split, batch_size=batch_size, limit=limit)
    if not is_main_process():
        return
    values = result.to_dict()
    for line in as_table(result, split=split):
        click.echo(line)
    if ngrams:
        losses = ngram_losses(folder, limit=limit, max_tokens=ngram_tokens)
        values |= losses.to_dict()
        for line in losses.lines():
            click.echo(line)
    if json_file:
        json_file.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


@main.command()
@click.argument("run", metavar="RUN|HF_DIR", type=LOCAL)
@click.argument("train", metavar="TRAIN")
@click.option("--out", required=True, type=LOCAL, help="Folder for the classifier.")
@click.option("--test", help="Labelled test rows. Default: hold out part of TRAIN.")
@click.option("--overwrite", is_flag=True, help="Replace an existing classifier.")
@options_of(FinetuneConfig)
def finetune(
    run: Path, train: str, out: Path, test: str | None, overwrite: bool, **options: Any
) -> None:
    """Fine-tune a pretrained model into a text classifier.

    HF_DIR is a BERT in Hugging Face format, with its tokenizer. TRAIN and --test are Parquet, JSON
    lines, CSV or TSV files, hf://DATASET or sample:reviews.
    """
    config = config_or_usage_error(FinetuneConfig, options)
    from train.finetuning.finetune import finetune as run_finetuning

    report = run_finetuning(
        run, train, out=out, test_source=test, config=config, overwrite=overwrite
    )
    for line in report.lines():
        click.echo(line)
    done = "" if report.is_new else "already complete: "
    click.echo(f"{done}accuracy {report.standing.finetuned.accuracy:.4f}: {out}")


@main.command()
@click.argument("train", metavar="TRAIN")
@click.option("--test", required=True, help="Labelled test rows.")
@click.option("--text", default=FinetuneConfig.text, show_default=True, help="Column of the text.")
@click.option("--text-pair", help="Column of the second text of a pair.")
@click.option(
    "--label", default=FinetuneConfig.label, show_default=True, help="Column of the class."
)
@click.option(
    "--max-tokens", type=click.IntRange(min=3), help="Truncate each row to this many tokens."
)
@click.option(
    "--tokenizer", type=FOLDER, help="Count --max-tokens with this tokenizer. Default: words."
)
def baseline(train: str, **options: Any) -> None:
    """Train and test the bag-of-words baseline."""
    from train.finetuning.baseline import baseline as run_baseline

    scores = run_baseline(train, options.pop("test"), **options)
    for line in scores.table():
        click.echo(line)
    click.echo(f"accuracy {scores.accuracy:.4f}")


@main.command()
@click.argument("folder", metavar="CLASSIFIER|HF_DIR", type=LOCAL)
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--file",
    "files",
    multiple=True,
    help="A table, or a file with one text per line; - is standard input.",
)
@click.option("--text", help="Column of the text in a table. Default: as in training.")
@click.option("--text-pair", help="Column of the second text of a pair.")
@click.option(
    "--batch-size",
    default=32,
    show_default=True,
    type=click.IntRange(min=1),
    help="Texts per forward pass.",
)
def predict(folder: Path, texts: tuple[str, ...], **options: Any) -> None:
    """Classify texts, files or standard input.

    Prints one line per text: class, probability and text, separated by tabs. HF_DIR is a
    BertForSequenceClassification; with --text-pair it reads pairs.
    """
    from train.predict import predict as run_prediction

    if not texts and not options["files"]:
        raise click.UsageError("give TEXT, or --file FILE (- is standard input).")
    for prediction in run_prediction(folder, texts, **options):
        click.echo(f"{prediction.label}\t{prediction.probability:.4f}\t{prediction.text}")


@main.command()
@click.argument("run", metavar="RUN|HF_DIR", type=LOCAL)
@click.argument("text")
@click.option("--top", default=5, show_default=True, help="Number of guesses per mask.")
def fill(run: Path, text: str, top: int) -> None:
    """Fill in each [MASK] of a text."""
    from train.fill import fill as run_fill

    filled = run_fill(run, text, top=top)
    click.echo(filled.text)
    for number, guesses in enumerate(filled.guesses, start=1):
        shown = "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses)
        click.echo(f"  {number}  {shown}")


@main.command()
@click.argument("folder", metavar="RUN|CLASSIFIER", type=LOCAL)
@click.option("--out", required=True, type=LOCAL, help="Folder for the exported model.")
@click.option("--overwrite", is_flag=True, help="Replace an existing export.")
def export(folder: Path, out: Path, overwrite: bool) -> None:
    """Convert a run or a classifier to Hugging Face format."""
    from train.export import export as run_export

    exported = run_export(folder, out=out, overwrite=overwrite)
    done = "" if exported.is_new else "already complete: "
    click.echo(f"{done}{exported.architecture} of {exported.parameters:,} parameters: {out}")
