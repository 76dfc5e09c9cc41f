"""`clozeline`: all commands, in the order in which data flows through them."""

import errno
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from model.config import PRESETS, BertConfig
from pipeline.cli import FOLDER, inspect, shards, tokenizer, verify
from pipeline.common.config_options import config_or_usage_error, options_of
from pipeline.common.errors import InputError
from train.config import PretrainConfig
from train.finetuning.config import FinetuneConfig

LOCAL = click.Path(path_type=Path)

# What the system says when the user's machine, and not our code, is at fault.
MENDABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR),
)


class Failure(click.ClickException):
    """One line and exit code 2."""

    exit_code = 2


class InOrder(click.Group):
    """Lists its commands as declared, and turns what the user can mend into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The order of declaration, not of the alphabet."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise Failure(str(error)) from error
        except OSError as error:
            if error.errno not in MENDABLE:
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror}. Mend that and run the same again.") from error


@click.group(cls=InOrder)
@click.version_option(package_name="clozeline", message="%(prog)s %(version)s")
def main() -> None:
    """Pretrain BERT from raw text."""


for command in (tokenizer, shards, inspect):
    main.add_command(command)


@main.command("verify", params=[*verify.params], help=verify.help)
@click.option("--loader", is_flag=True, help="Also prove that training reads each example once.")
@click.pass_context
def verify_with_loader(context: click.Context, loader: bool, **options: Any) -> None:
    """What the pipeline checks, and the order in which training reads it."""
    context.invoke(verify, **options)
    if loader:
        from train.data.loader_check import check_loader

        click.echo(check_loader(options["folder"]))


@main.command()
@click.argument("folders", metavar="SHARDS|RUN...", nargs=-1, required=True, type=FOLDER)
@click.option("--out", type=FOLDER, help="Write the page here, and of a data set no card.")
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Draw what a data set holds, or how runs went.

    Of a data set: a page, SHARDS/report.html, and a card for the Hub, SHARDS/README.md; a card that
    was edited is kept. Of a run: a page, RUN/report.html; up to four runs are drawn on the page of
    the first, with what differs between them.
    """
    from pipeline.dataset.manifest import MANIFEST
    from pipeline.report.dataset_report import write_report

    # Checked before torch is imported: a pipeline host may have none.
    is_run, is_data_set = ((folders[0] / name).exists() for name in ("run.json", MANIFEST))
    if is_run or len(folders) > 1:
        from train.monitoring.run_report import write_run_report

        click.echo(write_run_report(folders, out=out))
        return
    if folders[0].is_dir() and not is_data_set:
        raise InputError(
            f"{folders[0]} is neither a finished data set (no {MANIFEST} in it) nor a run (no "
            "run.json); give a folder that `clozeline shards` or `clozeline pretrain` made."
        )
    written = write_report(folders[0], out=out)
    if out is None and written.card is None:
        click.echo(f"warning: {folders[0] / 'README.md'} was edited, and is kept", err=True)
    click.echo(" and ".join(str(path) for path in (written.page, written.card) if path))


@main.command()
@click.argument("folder", metavar="SHARDS", type=FOLDER)
@click.option("--out", required=True, type=LOCAL, help="Folder of the run.")
@click.option("--preset", default="nano", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@click.option("--dropout", type=float, help="Instead of the preset's.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint, if there is one.")
@click.option("--overwrite", is_flag=True, help="Replace the run that is there.")
@click.option(
    "--start-from", type=LOCAL, help="Begin with the weights and moments of this other run."
)
@click.option("--init", type=LOCAL, help="Begin with the weights of this Hugging Face folder.")
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
    """Train a model on shards: alone, or under torchrun.

    With --start-from and without --preset the model is that of the other run, and with --init that
    of the folder.
    """
    if start_from and init:
        raise click.UsageError("give one of --start-from RUN and --init HF_DIR.")
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
    how = "" if outcome.is_new else "already complete: "
    how = how if outcome.is_complete else "stopped on request, --resume goes on: "
    end = f"in {training.for_}" if training.for_ else f"of {training.max_steps}"
    click.echo(f"{how}step {outcome.step} {end}: {out}")


def _chosen_model(
    folder: Path,
    preset: str,
    *,
    dropout: float | None,
    start_from: Path | None,
    init: Path | None,
) -> BertConfig:
    """The preset, or the model of what training begins with, where no preset is asked for."""
    from pipeline.dataset.manifest import read_manifest
    from train.artifacts.run import model_config, model_of
    from train.pretraining.initial_weights import initial_config

    asked = click.get_current_context().get_parameter_source("preset")
    is_asked = asked is not ParameterSource.DEFAULT
    if init:
        return initial_config(init, preset_name=preset if is_asked else None, dropout=dropout)
    if start_from and not is_asked:
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
    help="Held-out examples, or those to train on.",
)
@click.option(
    "--batch-size",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Examples at a time.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Examples at most.")
def evaluate(run: Path, folder: Path, split: str, batch_size: int, limit: int | None) -> None:
    """Measure a run on examples of a data set."""
    from train.engine.distributed import is_main_process
    from train.pretraining.evaluate import as_table, evaluate_run

    result = evaluate_run(run, folder, split=split, batch_size=batch_size, limit=limit)
    for line in as_table(result, split=split) if is_main_process() else ():
        click.echo(line)


@main.command()
@click.argument("run", metavar="RUN|HF_DIR", type=LOCAL)
@click.argument("train", metavar="TRAIN")
@click.option("--out", required=True, type=LOCAL, help="Folder of the classifier.")
@click.option("--test", help="Labelled rows to test on; not given: a share of TRAIN.")
@click.option("--overwrite", is_flag=True, help="Replace the classifier that is there.")
@options_of(FinetuneConfig)
def finetune(
    run: Path, train: str, out: Path, test: str | None, overwrite: bool, **options: Any
) -> None:
    """A pretrained RUN and labelled rows to a classifier.

    HF_DIR is a BERT in Hugging Face's format, with its tokenizer.
    TRAIN and --test are Parquet, JSON lines, CSV or TSV files, hf://DATASET or sample:reviews.
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
@click.option("--test", required=True, help="Labelled rows to test on.")
@click.option("--text", default=FinetuneConfig.text, show_default=True, help="Column of the text.")
@click.option("--text-pair", help="Column of a second text.")
@click.option(
    "--label", default=FinetuneConfig.label, show_default=True, help="Column of the class."
)
@click.option("--max-tokens", type=click.IntRange(min=3), help="Cut each row to so many tokens.")
@click.option("--tokenizer", type=FOLDER, help="Whose tokens; not given: words are counted.")
def baseline(train: str, **options: Any) -> None:
    """Bag-of-words: what a classifier has to beat."""
    from train.finetuning.baseline import baseline as run_baseline

    scores = run_baseline(train, options.pop("test"), **options)
    for line in scores.table():
        click.echo(line)
    click.echo(f"accuracy {scores.accuracy:.4f}")


@main.command()
@click.argument("folder", metavar="CLASSIFIER|HF_DIR", type=LOCAL)
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--file", "files", multiple=True, help="Texts a line, or a table; - is standard input."
)
@click.option("--text", help="Column of the text in a table; not given: as in training.")
@click.option("--text-pair", help="Column of a second text.")
@click.option(
    "--batch-size",
    default=32,
    show_default=True,
    type=click.IntRange(min=1),
    help="Texts at a time.",
)
def predict(folder: Path, texts: tuple[str, ...], **options: Any) -> None:
    """Classify texts, files, or standard input.

    A line for each text: the class, its probability, the text, with tabs between. HF_DIR is a
    BertForSequenceClassification; it reads pairs where there is a --text-pair.
    """
    from train.predict import predict as run_prediction

    if not texts and not options["files"]:
        raise click.UsageError("give a TEXT, or --file FILE (- is standard input).")
    for answer in run_prediction(folder, texts, **options):
        click.echo(f"{answer.label}\t{answer.probability:.4f}\t{answer.text}")


@main.command()
@click.argument("run", metavar="RUN|HF_DIR", type=LOCAL)
@click.argument("text")
@click.option("--top", default=5, show_default=True, help="Guesses for each mask.")
def fill(run: Path, text: str, top: int) -> None:
    """Fill each [MASK] of a text."""
    from train.fill import fill as run_fill

    filled = run_fill(run, text, top=top)
    click.echo(filled.text)
    for number, guesses in enumerate(filled.guesses, start=1):
        shown = "   ".join(f"{guess.piece} {guess.probability:.1%}" for guess in guesses)
        click.echo(f"  {number}  {shown}")


@main.command()
@click.argument("folder", metavar="RUN|CLASSIFIER", type=LOCAL)
@click.option("--out", required=True, type=LOCAL, help="Folder for transformers.")
@click.option("--overwrite", is_flag=True, help="Replace the export that is there.")
def export(folder: Path, out: Path, overwrite: bool) -> None:
    """A run or a classifier to a folder that transformers reads."""
    from train.export import export as run_export

    exported = run_export(folder, out=out, overwrite=overwrite)
    done = "" if exported.is_new else "already complete: "
    click.echo(f"{done}{exported.architecture} of {exported.parameters:,} parameters: {out}")
