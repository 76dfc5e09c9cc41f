"""The commands `pretrain` and `average`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click
from click.core import ParameterSource

from clozeline.model.config import PRESETS, BertConfig
from clozeline.pipeline.commandline.command import Command, grouped_option, recorded_options
from clozeline.pipeline.commandline.config_options import (
    AT_LEAST_ONE,
    PathOrUrl,
    config_or_usage_error,
    option,
    options_of,
)
from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.config_checks import seconds
from clozeline.pipeline.common.errors import STOPPED
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.config import RECIPE_FIELDS, PretrainConfig
from clozeline.train.pretraining.recipes import (
    CONTINUED,
    DEFAULT_PRESET,
    CoolDown,
    recipe_of,
    resolve,
)
from clozeline.train.store.folder_option import Folder

if TYPE_CHECKING:
    from clozeline.train.monitoring.trackers import Track
    from clozeline.train.pretraining.start import Start
    from clozeline.train.pretraining.trainer import Outcome

FOLDER = PathOrUrl()
OUT = Folder(writes=True)
#: The options that say where the run starts: see `find_start`.
SOURCES = ("resume", "overwrite", "start_from", "init", "cool_down_from")


def _presets(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(incomplete)]


@dataclass(frozen=True)
class RunOptions:
    """The model, where the run starts, and what is printed or watched beside it."""

    preset: str | None = option(
        None,
        f"Model architecture, with its recipe of training: {', '.join(PRESETS)}; defaults to "
        f"{DEFAULT_PRESET}.",
        group="Model",
        shell_complete=_presets,
    )
    dropout: float | None = option(
        None, "Dropout probability; overrides the preset.", group="Model"
    )
    resume: bool = option(
        False,
        "Continue from the latest checkpoint, if there is one.",
        group="Output",
        is_flag=True,
    )
    overwrite: bool = option(False, "Replace an existing run.", group="Output", is_flag=True)
    start_from: Path | None = option(
        None,
        "Start from the weights and optimizer state of this run.",
        group="Model",
        type=Folder(),
    )
    init: Path | None = option(
        None, "Start from the weights of this Hugging Face folder.", group="Model", type=Folder()
    )
    cool_down_from: str | None = option(
        None,
        "Continue this run from this checkpoint, and lower its learning rate to 0 until "
        "--max-steps; other shards of its tokenizer are read from their beginning.",
        group="Model",
        metavar="RUN@STEP",
    )
    print_recipe: bool = option(
        False,
        "Print the numbers of the run with their sources and exit.",
        group="Output",
        is_flag=True,
    )
    estimate: bool = option(
        False,
        "Print memory, speed, hours and cost on GPUs that need not be here, and exit.",
        group="Estimate",
        is_flag=True,
    )
    gpu: str | None = option(
        None,
        "With --estimate: kinds of GPU, such as a100,h100,rtx4090; defaults to h100.",
        group="Estimate",
        metavar="NAMES",
    )
    gpus: str | None = option(
        None,
        "With --estimate: numbers of GPUs, such as 1,8,64; defaults to 1.",
        group="Estimate",
        metavar="NUMBERS",
    )
    price_per_hour: float | None = option(
        None,
        "With --estimate: price of one GPU for an hour.",
        group="Estimate",
        type=click.FloatRange(min=0),
    )
    profile: int | None = option(
        None,
        "Profile this many steps after the first three: OUT/profile gets a trace and a table of "
        "the ten most expensive operations.",
        group="Output",
        metavar="STEPS",
        type=AT_LEAST_ONE,
    )
    timeout: str = option(
        "10m",
        "How long processes wait for one that does not answer before all end with an error.",
        group="Speed and memory",
        metavar="TIME",
    )
    track: Literal["none", "wandb", "mlflow"] = option(
        "none",
        "Also send the metrics to Weights & Biases or MLflow; a resumed run continues there, too.",
        group="Metrics and checkpoints",
    )


@click.command(
    cls=Command,
    example="clozeline pretrain work/shards --preset bert-mini --max-steps 10000 --out work/run",
)
@click.argument("shards", metavar="SHARDS", type=FOLDER)
@grouped_option(
    "--out", required=True, type=OUT, help="Folder for the run, or its URL.", group="Output"
)
@options_of(RunOptions)
@options_of(PretrainConfig)
def pretrain(
    shards: Path,
    out: Path,
    preset: str | None,
    dropout: float | None,
    print_recipe: bool,
    profile: int | None,
    track: "Track",
    timeout: str,
    **options: Any,
) -> None:
    """Pretrain a model on shards, in one process or under torchrun.

    Options that are not given take their values from the preset's recipe (--print-recipe), and
    those of a resumed run, and its model, from that run. With --start-from or --init, the
    architecture is that of the given run or folder, unless --preset is given as well. A run that
    starts from another may have longer examples: the model then gets more positions. SIGTERM and
    SIGINT save a checkpoint and exit with code 75; SIGUSR1 saves one, and training continues.

    --cool-down-from makes a finished model of a run with a constant learning rate, from any of its
    checkpoints; --max-steps counts the steps of that run, too, and defaults to a quarter more.
    """
    estimated = _estimated_gpus(options)
    sources = {name: options.pop(name) for name in SOURCES}
    _check_options(preset, options, sources)
    sources["cool_down_from"] = _cool_down(sources["cool_down_from"])
    manifest = read_manifest(shards)
    chosen: dict[str, Any] = {"preset": preset, "dropout": dropout, "options": options}
    from clozeline.train.engine.distributed import join_world
    from clozeline.train.engine.lost_process import lost_process_in_one_line
    from clozeline.train.pretraining.plan import make_plan
    from clozeline.train.pretraining.pretrain import train_run
    from clozeline.train.pretraining.start import find_start, locked_run

    no_lock: AbstractContextManager[None] = nullcontext()
    with (
        join_world(patience=_patience(timeout)) as world,
        lost_process_in_one_line(world),
        no_lock if print_recipe or estimated else locked_run(out, world),
    ):
        start = find_start(out, world, **sources)
        if estimated:
            _print_estimate(shards, start, estimated, chosen)
        plan = world.broadcast_from_main(lambda: make_plan(manifest, start, world, **chosen))
        training = config_or_usage_error(PretrainConfig, options | plan.values)
        if print_recipe:
            click.echo("\n".join(plan.lines()) if world.is_main else "", nl=world.is_main)
            return
        outcome = train_run(
            shards,
            start,
            world,
            model=plan.model,
            training=training,
            profile=profile or 0,
            track=track,
            note=plan.note,
            options=_reproducing(training),
        )
    _report(outcome, out, training)


def _estimated_gpus(options: dict[str, Any]) -> tuple[str, list[int], float | None] | None:
    """The kinds, numbers and price of the GPUs to estimate for, taken out of the options.

    None without --estimate. Raises UsageError.
    """
    is_wanted = options.pop("estimate")
    kinds, numbers, price = (options.pop(name) for name in ("gpu", "gpus", "price_per_hour"))
    for name, value in (("--gpu", kinds), ("--gpus", numbers), ("--price-per-hour", price)):
        if value is not None and not is_wanted:
            raise click.UsageError(f"{name} belongs to --estimate; add it, or leave it out.")
    for number in (numbers or "1").split(","):
        if not number.strip().isdecimal() or not 0 < int(number) <= 1 << 20:
            raise click.UsageError(
                f"--gpus {number!r}: give whole numbers from 1 on, as in 1,8,64."
            )
    if not is_wanted:
        return None
    return kinds or "h100", [int(number) for number in (numbers or "1").split(",")], price


def _print_estimate(
    shards: Path,
    start: "Start",
    gpus: tuple[str, list[int], float | None],
    chosen: dict[str, Any],
) -> NoReturn:
    """Print what the run needs on each of them, and exit."""
    from clozeline.train.pretraining.estimate import estimate_lines

    click.echo("\n".join(estimate_lines(shards, start, *gpus, **chosen)))
    click.get_current_context().exit()


def _reproducing(training: PretrainConfig) -> dict[str, Any]:
    """The options that reproduce the run, even if the recipe has changed since."""
    [(name, given)] = recorded_options().items()
    chosen = {field: getattr(training, field) for field in RECIPE_FIELDS}
    return {name: given | chosen}


def _cool_down(text: str | None) -> CoolDown | None:
    """The run and step that --cool-down-from names, which may be in a store; None without it."""
    if text is None:
        return None
    context = click.get_current_context()
    return CoolDown.parse(text, lambda run: Folder().convert(run, None, context))


def _patience(timeout: str) -> timedelta:
    try:
        return timedelta(seconds=seconds(timeout, name="timeout"))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_options(preset: str | None, options: dict[str, Any], sources: dict[str, Any]) -> None:
    """Check the options before torch is imported. Raises UsageError."""
    if sources["start_from"] and sources["init"]:
        raise click.UsageError("--start-from and --init exclude each other; give one.")
    if sources["cool_down_from"]:
        for name in ("start_from", "init", "for_", "batch_ramp"):
            if (sources | options)[name]:
                option = "--" + name.rstrip("_").replace("_", "-")
                raise click.UsageError(f"{option} does not go with --cool-down-from; leave it out.")
    if options["for_"] and _is_given("max_steps"):
        raise click.UsageError("--for and --max-steps each end the run; give one.")
    try:
        recipe_of(preset or DEFAULT_PRESET)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    given = {name: options[name] for name in RECIPE_FIELDS if options[name] is not None}
    possible = resolve(CONTINUED, {}, model=BertConfig(), examples=1)
    values = {name: setting.value for name, setting in possible.items()}
    config_or_usage_error(PretrainConfig, options | values | given)


def _is_given(option: str) -> bool:
    """Whether the option is on the command line, and not only in a --config file."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


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
