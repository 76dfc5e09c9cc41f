"""The commands that pretrain a model and measure it."""

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clozeline.model.config import PRESETS, BertConfig
from clozeline.pipeline.commandline.command import Command, grouped_option, recorded_options
from clozeline.pipeline.commandline.config_options import (
    PathOrUrl,
    config_or_usage_error,
    options_of,
)
from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.errors import STOPPED
from clozeline.train.config import RECIPE_FIELDS, PretrainConfig, seconds
from clozeline.train.pretraining.recipes import CONTINUED, DEFAULT_PRESET, recipe_of, resolve
from clozeline.train.store.folder_option import Folder

if TYPE_CHECKING:
    from clozeline.train.monitoring.trackers import Track
    from clozeline.train.pretraining.cool_down import CoolDown
    from clozeline.train.pretraining.trainer import Outcome

LOCAL = click.Path(path_type=Path)
FOLDER = PathOrUrl()
OUT = Folder(writes=True)
#: The options that say what a run starts from.
SOURCES = ("start_from", "init", "cool_down_from", "overwrite")


def _presets(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(incomplete)]


@click.command(
    cls=Command,
    example="clozeline pretrain work/shards --preset bert-mini --max-steps 10000 --out work/run",
)
@click.argument("shards", metavar="SHARDS", type=FOLDER)
@grouped_option(
    "--out", required=True, type=OUT, help="Folder for the run, or its URL.", group="Output"
)
@grouped_option(
    "--preset",
    shell_complete=_presets,
    help=f"Model architecture, with its recipe of training: {', '.join(PRESETS)}; defaults to "
    f"{DEFAULT_PRESET}.",
    group="Model",
)
@grouped_option(
    "--dropout", type=float, help="Dropout probability; overrides the preset.", group="Model"
)
@grouped_option(
    "--resume",
    is_flag=True,
    help="Continue from the latest checkpoint, if there is one.",
    group="Output",
)
@grouped_option("--overwrite", is_flag=True, help="Replace an existing run.", group="Output")
@grouped_option(
    "--start-from",
    type=Folder(),
    help="Start from the weights and optimizer state of this run.",
    group="Model",
)
@grouped_option(
    "--init",
    type=Folder(),
    help="Start from the weights of this Hugging Face folder.",
    group="Model",
)
@grouped_option(
    "--cool-down-from",
    metavar="RUN@STEP",
    help="Continue this run from this checkpoint, and lower its learning rate to 0 until "
    "--max-steps.",
    group="Model",
)
@grouped_option(
    "--print-recipe",
    is_flag=True,
    help="Print the numbers of the run with their sources and exit.",
    group="Output",
)
@grouped_option(
    "--profile",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Profile this many steps after the first three: OUT/profile gets a trace and a table of "
    "the ten most expensive operations.",
    group="Output",
)
@grouped_option(
    "--timeout",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long processes wait for one that does not answer before all end with an error.",
    group="Speed and memory",
)
@grouped_option(
    "--track",
    default="none",
    show_default=True,
    type=click.Choice(["none", "wandb", "mlflow"]),
    help="Also send the metrics to Weights & Biases or MLflow; a resumed run continues there, too.",
    group="Metrics and checkpoints",
)
@options_of(PretrainConfig)
def pretrain(
    shards: Path,
    out: Path,
    preset: str | None,
    dropout: float | None,
    resume: bool,
    print_recipe: bool,
    profile: int | None,
    track: "Track",
    timeout: str,
    **options: Any,
) -> None:
    """Pretrain a model on shards, in one process or under torchrun.

    Options that are not given take their values from the preset's recipe (--print-recipe), and
    those of a resumed run from that run. With --start-from or --init, the architecture is that of
    the given run or folder, unless --preset is given as well. A run that starts from another may
    have longer examples: the model then gets more positions. SIGTERM and SIGINT save a checkpoint
    and exit with code 75.

    --cool-down-from makes a finished model of a run with a constant learning rate, from any of its
    checkpoints; --max-steps counts the steps of that run, too, and defaults to a quarter more.
    """
    given = {name: options[name] for name in RECIPE_FIELDS if options[name] is not None}
    sources = {name: options.pop(name) for name in SOURCES}
    _check_options(preset, options, given, sources)
    sources["cool_down_from"] = _cool_down(sources["cool_down_from"])
    from clozeline.train.engine.distributed import join_world
    from clozeline.train.engine.lost_process import lost_process_in_one_line
    from clozeline.train.pretraining.plan import make_plan
    from clozeline.train.pretraining.pretrain import pretrain as run_pretraining

    how: dict[str, Any] = {"preset": preset, "dropout": dropout, "given": given, **sources}
    how |= {"is_timed": bool(options["for_"]), "is_sharded": options["parallel"] == "fsdp"}
    with join_world(patience=_patience(timeout)) as world, lost_process_in_one_line(world):
        plan = make_plan(shards, out=out, world=world, **how)
        training = config_or_usage_error(PretrainConfig, options | plan.values)
        if print_recipe:
            click.echo("\n".join(plan.lines()) if world.is_main else "", nl=world.is_main)
            return
        run_options = {"resume": resume, "profile": profile or 0, "track": track, **sources}
        run_options |= {"note": plan.note, "options": _reproducing(training)}
        outcome = run_pretraining(
            shards, out=out, model=plan.model, training=training, **run_options
        )
    _report(outcome, out, training)


def _reproducing(training: PretrainConfig) -> dict[str, Any]:
    """The options that reproduce the run, even if the recipe has changed since."""
    [(name, given)] = recorded_options().items()
    chosen = {field: getattr(training, field) for field in RECIPE_FIELDS}
    return {name: given | chosen}


def _cool_down(text: str | None) -> "CoolDown | None":
    """The run and step that --cool-down-from names; None without it."""
    from clozeline.train.pretraining.cool_down import CoolDown, parse_cool_down

    if text is None:
        return None
    run, step = parse_cool_down(text)
    return CoolDown(Folder().convert(run, None, click.get_current_context()), step)


def _patience(timeout: str) -> timedelta:
    try:
        return timedelta(seconds=seconds(timeout, name="timeout"))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_options(
    preset: str | None, options: dict[str, Any], given: dict[str, Any], sources: dict[str, Any]
) -> None:
    """Check the options before torch is imported. Raises UsageError."""
    if sources["start_from"] and sources["init"]:
        raise click.UsageError("--start-from and --init exclude each other; give one.")
    if sources["cool_down_from"]:
        for name in ("start_from", "init", "for_", "batch_ramp"):
            if (sources | options)[name]:
                option = "--" + name.rstrip("_").replace("_", "-")
                raise click.UsageError(f"{option} does not go with --cool-down-from; leave it out.")
    try:
        recipe_of(preset or DEFAULT_PRESET)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    possible = resolve(CONTINUED, {}, model=BertConfig(), examples=1)
    values = {name: setting.value for name, setting in possible.items()}
    config_or_usage_error(PretrainConfig, options | values | given)


def _report(outcome: "Outcome", out: Path, training: PretrainConfig) -> None:
    """Print the outcome; a stopped run exits with code 75."""
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.evaluation.evaluate import as_table

    budget = f"in {training.for_}" if training.for_ else f"of {training.max_steps}"
    reached, done = f"step {outcome.step} {budget}", "" if outcome.is_new else "already complete: "
    last_line = f"{done}{reached}: {as_given(out)}"
    if not outcome.is_complete:
        last_line = f"Stopped at {reached}; checkpoint saved. Add `--resume` to continue."
    if is_main_process():
        for line in as_table(outcome.heldout) if outcome.heldout else ():
            click.echo(line)
        click.echo(last_line)
        if outcome.is_complete:
            print_next_for(out)
    if not outcome.is_complete:
        click.get_current_context().exit(STOPPED)


@click.command(cls=Command, example="clozeline average work/run --last 5 --out work/average")
@click.argument("run", type=Folder())
@grouped_option(
    "--last",
    default=5,
    show_default=True,
    type=click.IntRange(min=2),
    help="Number of checkpoints, the newest ones of the run.",
    group="Model",
)
@grouped_option(
    "--evaluate", type=FOLDER, metavar="SHARDS", help="Measure the average here.", group="Model"
)
@grouped_option("--out", required=True, type=OUT, help="Folder for the average.", group="Output")
def average(run: Path, last: int, evaluate: Path | None, out: Path) -> None:
    """Average the weights of the last checkpoints of a run.

    The result is a run for all other commands, but has no optimizer state: it cannot be continued,
    only started from. Train with --keep to have enough checkpoints.
    """
    from clozeline.train.evaluation.evaluate import as_table
    from clozeline.train.pretraining.average import average as run_average

    averaged = run_average(run, out=out, last=last, shards=evaluate)
    for line in as_table(averaged.heldout) if averaged.heldout else ():
        click.echo(line)
    *others, newest = map(str, averaged.steps)
    done = "" if averaged.is_new else "already complete: "
    click.echo(
        f"{done}mean of the weights of steps {', '.join(others)} and {newest}: {as_given(out)}"
    )
    print_next_for(out)


@click.command(cls=Command, example="clozeline evaluate work/run work/shards")
@click.argument("run", type=Folder())
@click.argument("shards", metavar="SHARDS", type=FOLDER)
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
    "--ngrams",
    is_flag=True,
    help="Also measure bigrams and trigrams; takes minutes.",
    group="N-grams",
)
@grouped_option(
    "--ngram-tokens",
    default=100_000_000,
    show_default=True,
    type=click.IntRange(min=3),
    help="Maximum number of training tokens to count n-grams in.",
    group="N-grams",
)
@grouped_option(
    "--json", "json_file", type=LOCAL, help="Also write the results to this file.", group="Output"
)
def evaluate(
    run: Path,
    shards: Path,
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
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.evaluation.evaluate import as_table, evaluate_run
    from clozeline.train.evaluation.ngram_loss import ngram_losses

    result = evaluate_run(run, shards, split=split, batch_size=batch_size, limit=limit)
    if not is_main_process():
        return
    values = result.to_dict()
    for line in as_table(result, split=split):
        click.echo(line)
    if ngrams:
        losses = ngram_losses(shards, limit=limit, max_tokens=ngram_tokens)
        values |= losses.to_dict()
        for line in losses.lines():
            click.echo(line)
    if json_file:
        json_file.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    print_next_for(run)
