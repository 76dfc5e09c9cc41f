"""`clozeline`: all commands, in data-flow order."""

import io
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from clozeline.pipeline.cli import shards, tokenizer, verify
from clozeline.pipeline.commandline.command import Command, end_of_interrupted, print_next_for
from clozeline.pipeline.commandline.config_options import (
    AT_LEAST_ONE,
    grouped_option,
    option,
    options_of,
    typed_path,
)
from clozeline.pipeline.commandline.removed_options import removed_command
from clozeline.pipeline.common.errors import (
    ClozelineError,
    InputError,
    advice,
    escaped,
    is_out_of_memory,
    missing_package,
    one_line,
    own_version,
)
from clozeline.train.benchmark.cli import benchmark
from clozeline.train.estimate.cli import estimate
from clozeline.train.evaluation.cli import evaluate
from clozeline.train.finetuning.cli import baseline, finetune
from clozeline.train.pretraining.cli import pretrain
from clozeline.train.report.cli import inspect, report, view
from clozeline.train.store.local_folder import Folder

OUT = Folder(writes=True)
OTHERS_WAIT = 3.0  # seconds; torchrun sees within a tenth of one that a process has ended


@dataclass(frozen=True)
class PredictOptions:
    """What is classified, by what, and how it is shown."""

    file: tuple[str, ...] = option(
        (), "A table, or a file with one text per line; - is standard input.", group="Text"
    )
    text: str | None = option(
        None, "Column of the text in a table. Default: as in training.", group="Text"
    )
    text_pair: str | None = option(None, "Column of the second text of a pair.", group="Text")
    batch_size: int = option(32, "Texts per forward pass.", group="Model", type=AT_LEAST_ONE)
    json: bool = option(
        False, "Print JSON lines with all probabilities.", group="Output", is_flag=True
    )


@dataclass(frozen=True)
class ExportOptions:
    """What another library needs."""

    format: Literal["transformers", "pretraining", "onnx"] = option(
        "transformers",
        "What reads the folder; `pretraining` is `transformers` with the next-sentence head of a "
        "`bert-*` run, for AutoModelForPreTraining.",
        group="Output",
    )
    overwrite: bool = option(
        False, "Replace an existing export with its README.md.", group="Output", is_flag=True
    )


def failure(message: str, exit_code: int) -> click.ClickException:
    """An exception that ends the command with one line and an exit code."""
    exception = click.ClickException(message)
    exception.exit_code = exit_code  # type: ignore[misc]  # click itself sets it per instance
    return exception


class InOrder(click.Group):
    """Lists commands in order of declaration; reports expected errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if message := removed_command(args[0]):
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except (KeyboardInterrupt, Exception) as error:
            if end := end_of_interrupted(error, self.commands.get(ctx.invoked_subcommand or "")):
                raise end from error
            if not isinstance(error, click.ClickException):
                raise
            # Processes of torchrun meet the same bad input, and the first that ends ends the
            # others: one of each machine says what is wrong.
            if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK") != "0":
                time.sleep(OTHERS_WAIT)
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClozelineError as error:
            raise failure(str(error), error.exit_code) from error
        except OSError as error:
            # A broken pipe is click's: the reader of our output has left.
            if error.errno is None or isinstance(error, BrokenPipeError):
                raise
            where = f"{error.filename}: " if error.filename else ""
            step = advice(error, "access", otherwise="check the path" if where else "")
            end = f"; {step}, then rerun the command." if step else "."
            message = f"{where}{os.strerror(error.errno)}{end}"
            raise failure(escaped(message), InputError.exit_code) from error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            message = f"there is not enough memory ({one_line(error) or 'MemoryError'})."
            raise failure(message, ClozelineError.exit_code) from error
        except Exception as error:
            if missing := missing_package(error):
                raise failure(str(missing), missing.exit_code) from error
            raise


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(own_version(), message="%(prog)s %(version)s")
def main() -> None:
    """Pretrain BERT from raw text, then fine-tune it.

    The commands are listed in data-flow order.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # the name of a file need not be text
        sys.stdout.reconfigure(errors="backslashreplace")


for command in (
    *(tokenizer, shards, inspect, verify, report, view),
    *(pretrain, estimate, evaluate, finetune, baseline, benchmark),
):
    main.add_command(command)


@main.command(cls=Command, example='clozeline predict work/classifier "What a lovely lamp."')
@click.argument("classifier", metavar="CLASSIFIER|HF_DIR", type=Folder())
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@options_of(PredictOptions)
def predict(classifier: Path, texts: tuple[str, ...], json: bool, **options: Any) -> None:
    """Classify texts, files or standard input.

    Prints one line per text: class, probability and text, separated by tabs; line ends are
    shown as spaces. JSON has text, label, probability and probabilities. HF_DIR holds a
    BertForSequenceClassification or a ModernBertForSequenceClassification; with --text-pair it
    reads pairs.
    """
    from clozeline.train.inference.predict import is_file_name
    from clozeline.train.inference.predict import predict as run_prediction

    files = options.pop("file")
    if not texts and not files:
        raise click.UsageError("give TEXT, or --file FILE (- is standard input).")
    for text in texts:
        if os.path.isfile(text):  # noqa: PTH113 (Path raises for a text that is too long)
            option = shlex.join(["--file", text])
            click.echo(f"note: {text} is classified as a text; {option} reads it", err=True)
        elif is_file_name(text):
            raise InputError(
                f"there is no file {text}; check its name, and give it as --file. To classify "
                "these words as a text, pipe them to --file -."
            )
    is_empty = True
    for prediction in run_prediction(classifier, texts, files=files, **options):
        is_empty = False
        click.echo(prediction.json() if json else prediction.line())
    if is_empty:
        click.echo(f"note: no text to classify in {', '.join(map(typed_path, files))}", err=True)


@main.command(cls=Command, example='clozeline fill work/run "The capital of France is [MASK]."')
@click.argument("run", metavar="RUN|HF_DIR", type=Folder())
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@grouped_option(
    "--top", default=5, show_default=True, help="Number of guesses per mask.", group="Output"
)
def fill(run: Path, texts: tuple[str, ...], top: int) -> None:
    """Fill in each [MASK] of the texts."""
    from clozeline.train.inference.fill import fill as run_fill

    for filled in run_fill(run, texts, top=top):
        click.echo(filled.text)
        for number, guesses in enumerate(filled.guesses, start=1):
            shown = "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses)
            click.echo(f"  {number}  {shown}")
    print_next_for(run)


@main.command(cls=Command, example="clozeline export work/run --out work/huggingface")
@click.argument("folder", metavar="RUN|CLASSIFIER", type=Folder())
@grouped_option(
    "--out", required=True, type=OUT, help="Folder for the exported model.", group="Output"
)
@options_of(ExportOptions)
def export(folder: Path, out: Path, format: Any, **options: Any) -> None:
    """Convert a run or a classifier for other libraries.

    An ONNX graph is compared with the model in torch.
    """
    from clozeline.train.export.export import export as run_export

    exported = run_export(folder, out=out, form=format, **options)
    done = "" if exported.is_new else "already complete: "
    click.echo(f"{done}{exported.description}: {typed_path(out)}")
    if format != "onnx":  # it has no card
        click.echo(f"Next: {typed_path(out).rstrip('/')}/README.md shows how to load it", err=True)
