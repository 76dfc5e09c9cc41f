"""The command `pretrain`: what is given -> where the run starts -> its numbers -> the run.

    clozeline pretrain work/shards --out work/run --preset nano --resume

`pretrain` at the top reads in this order; `start.py` decides, `pretrain.py` trains.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clozeline.model.config import PRESETS, BertConfig, full_name
from clozeline.pipeline.commandline.command import Command, print_next_for, recorded_options
from clozeline.pipeline.commandline.config_options import (
    GroupedOption,
    PathOrUrl,
    config_or_usage_error,
    option,
    options_of,
    typed_path,
)
from clozeline.pipeline.commandline.hub_model import is_hub_name
from clozeline.pipeline.common.config_checks import seconds
from clozeline.pipeline.common.errors import STOPPED
from clozeline.pipeline.common.signals import handled
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.config import (
    COOL_DOWN,
    KEPT_FIELDS,
    RECIPE_FIELDS,
    PretrainConfig,
    effective_fields,
)
from clozeline.train.pretraining.recipes import (
    CONTINUED,
    DEFAULT_PRESET,
    REACHED,
    Origin,
    check_cool_down,
    resolve,
)
from clozeline.train.store.local_folder import MODEL, OPTIMIZER, Folder

if TYPE_CHECKING:
    from clozeline.train.engine.distributed import World
    from clozeline.train.pretraining.start import Plan, Start
    from clozeline.train.pretraining.trainer import Outcome

OUT = Folder(writes=True, weights=(MODEL, OPTIMIZER))


def _presets(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(incomplete)]


@dataclass(frozen=True)
class RunOptions:
    """The options besides the training config: model, start, and what is printed or watched."""

    preset: str | None = option(
        None,
        f"Model architecture, with its recipe of training: {', '.join(PRESETS)}; defaults to "
        f"{DEFAULT_PRESET}. Or a .json file: fields of `BertConfig`, or a config.json of "
        "Hugging Face.",
        group="Model",
        shell_complete=_presets,
    )
    set_: tuple[str, ...] = option(
        (),
        "Change a field of the architecture, as in hidden_size=320; repeatable.",
        group="Model",
        metavar="FIELD=VALUE",
    )
    dropout: float | None = option(
        None, "Dropout probability; overrides the preset.", group="Model"
    )
    from_: str | None = option(
        None,
        "Start from the weights and optimizer state of a run, or of one of its checkpoints, or "
        "from the weights of a Hugging Face folder.",
        group="Model",
        metavar="RUN|RUN@STEP|HF_DIR",
    )
    resume: bool = option(
        False,
        "Continue from the latest checkpoint, if there is one.",
        group="Output",
        is_flag=True,
    )
    overwrite: bool = option(False, "Replace an existing run.", group="Output", is_flag=True)
    print_recipe: bool = option(
        False,
        "Print the numbers of the run with their sources and exit.",
        group="Output",
        is_flag=True,
    )
    timeout: str = option(
        "10m",
        "All processes end with an error if one has not answered for this long.",
        group="Speed and memory",
        metavar="TIME",
    )


class _ToTrain(click.Parameter):
    """Required, but not with --print-recipe, which click reads before what is left out."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        if ctx.params.get("print_recipe") and self.value_is_missing(value):
            return None
        return super().process_value(ctx, value)


class _ArgumentToTrain(_ToTrain, click.Argument):
    pass


class _OptionToTrain(_ToTrain, GroupedOption):
    pass


@click.command(
    cls=Command,
    example="clozeline pretrain work/shards --preset bert-mini --max-steps 10000 --out work/run",
    kept="Checkpoints are kept; run the same command again with --resume to continue.",
    common=(
        *("preset", "from_", "resume", "overwrite", "print_recipe", "max_steps", "for_"),
        *("batch_size", "micro_batch_size", "learning_rate", "schedule", "precision"),
        *("eval_every", "save_every"),
    ),
)
@click.argument("shards", metavar="SHARDS", type=PathOrUrl(), cls=_ArgumentToTrain)
@click.option(
    "--out",
    required=True,
    type=OUT,
    help="Folder for the run, or its URL.",
    group="Output",
    cls=_OptionToTrain,
)
@options_of(RunOptions)
@options_of(PretrainConfig)
def pretrain(shards: Path | None, out: Path | None, **options: Any) -> None:
    """Pretrain a model on shards, in one process or under torchrun.

    Options that are left out come from the preset's recipe; --print-recipe shows it, and needs
    neither SHARDS nor --out. A resumed run keeps its model and most of its options. These
    have to be given again: --eval-every, and those of speed and memory other than --precision.
    SIGTERM and SIGINT save a checkpoint, if there was a step, and exit with code 75.

    --from also sets the architecture; longer examples than those of the other run give the model
    more positions. `--from RUN@STEP --schedule cool-down` decays the learning rate of a
    constant-rate run to 0: it continues from the checkpoint to --max-steps (the steps of that run
    included; by default, a quarter more). Other shards of its tokenizer are read from their
    beginning.
    """
    run = RunOptions(**{field.name: options.pop(field.name) for field in fields(RunOptions)})
    origin = _origin(run)
    _check_options(run, origin, options)
    for name in KEPT_FIELDS:  # in which a continued run has values of its own
        if _source_of(name) is ParameterSource.DEFAULT:
            del options[name]
    if shards is None and options.get("phase"):
        raise click.UsageError("--phase reads other data first; give SHARDS, too.")
    manifest = read_manifest(shards) if shards else None  # before anything is made
    out = out or Path(os.devnull)  # where no run is
    with _world_of(out, run.timeout, writes=not run.print_recipe) as world:
        from clozeline.train.pretraining.pretrain import train_run
        from clozeline.train.pretraining.start import ASSUMED, Start, find_start, make_plan

        own = {name: getattr(run, name) for name in ("preset", "dropout", "resume", "overwrite")}
        given = Start(out=out, origin=origin, changes=run.set_, options=options, **own)
        start = find_start(given, world)
        plan = world.broadcast_from_main(lambda: make_plan(manifest or ASSUMED, start, world))
        training = config_or_usage_error(PretrainConfig, options | plan.values)
        if run.print_recipe or not shards:
            _print_recipe(run, shards, plan, training, world)
            return
        outcome = train_run(
            shards,
            start,
            world,
            model=plan.model,
            training=training,
            note=plan.note,
            options=_reproducing(training, start),
        )
    _report(outcome, out, training)


def _origin(run: RunOptions) -> Origin | None:
    """What --from names, with the local copy of a folder in a store."""
    if run.from_ is None:
        return None
    context = click.get_current_context()

    def opened(text: str, step: int | None) -> Path:
        return Folder(weights=(MODEL, OPTIMIZER), step=step).convert(text, None, context)

    return Origin.parse(run.from_, opened)


def _check_options(run: RunOptions, origin: Origin | None, options: dict[str, Any]) -> None:
    """Check the options before torch is imported. Raises UsageError and InputError."""
    if options["schedule"] == COOL_DOWN and not run.resume:
        check_cool_down(origin, options)
    # A --config file may have both.
    if options["for_"] and _source_of("max_steps") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--for and --max-steps each end the run; give one.")
    try:
        if run.preset and not (run.preset.endswith(".json") or is_hub_name(run.preset)):
            full_name(run.preset)
        seconds(run.timeout, name="timeout")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    chosen = {name: options[name] for name in RECIPE_FIELDS if options[name] is not None}
    if chosen.get("schedule") == COOL_DOWN:
        del chosen["schedule"]
    possible = resolve(CONTINUED, {}, model=BertConfig(), examples=1)
    values = {name: possible[name].value for name in RECIPE_FIELDS}
    config_or_usage_error(PretrainConfig, options | values | chosen)


@contextmanager
def _world_of(out: Path, timeout: str, *, writes: bool) -> Iterator["World"]:
    """All processes of the run, which hold the lock of its folder if they write there.

    From here on SIGTERM ends a process that writes there in one line.
    """
    with _stoppable() if writes else nullcontext():
        from clozeline.train.engine.distributed import join_world
        from clozeline.train.engine.lost_process import lost_process_in_one_line
        from clozeline.train.pretraining.pretrain import locked_run

        with (
            join_world(patience=timedelta(seconds=seconds(timeout, name="timeout"))) as world,
            lost_process_in_one_line(world),
            locked_run(out, world) if writes else nullcontext(),
        ):
            yield world


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the process with code 75.

    From the first step to the last one, `StopAndBudget` receives it.
    """

    def receive(*_: object) -> None:
        sys.exit(STOPPED)

    try:
        with handled((signal.SIGTERM,), receive):
            yield
    except SystemExit as end:
        # torch may not be imported yet
        if end.code == STOPPED and os.environ.get("RANK", "0") == "0":
            click.echo("Stopped. Add `--resume` to continue.")
        raise


def _print_recipe(
    run: RunOptions, shards: Path | None, plan: "Plan", training: PretrainConfig, world: "World"
) -> None:
    from clozeline.train.data.phases import find_phases
    from clozeline.train.pretraining.run_summary import layer_lines, phase_lines
    from clozeline.train.pretraining.start import ASSUMED_NOTE

    phases = find_phases(shards or Path("SHARDS"), plan.manifest, training)
    if world.is_main:
        if not shards:
            click.echo(ASSUMED_NOTE, err=True)
        lines = [*plan.lines(), *phase_lines(phases, training)]
        if not (run.from_ or run.resume or run.set_):
            lines.append(f"reached    {REACHED.get(run.preset or DEFAULT_PRESET, 'not measured')}")
        lines += layer_lines(plan.model)
        click.echo("\n".join(lines))


def _reproducing(training: PretrainConfig, start: "Start") -> dict[str, Any]:
    """The options that reproduce the run, even if the recipe has changed since.

    Its model and first weights, where the command leaves them out, are those of the run that it
    continues.
    """
    [(name, options)] = recorded_options().items()
    earlier = start.existing.options.get(name, {}) if start.existing else {}
    inherited = ("preset", "set", "dropout", *([] if "from" in options else ["from"]))
    is_left_out = {x for x in inherited if options.get(x, []) == []}  # --set is a list
    options |= {x: earlier[x] for x in is_left_out & earlier.keys()}
    names = {*effective_fields(training.schedule), *KEPT_FIELDS}
    if start.cools_down:  # the decay follows from RUN@STEP and --max-steps
        options["schedule"] = COOL_DOWN
        names -= {"schedule", "warmup", "cool_down"}
    if start.existing and "unpadded" not in earlier:  # the device decides, as in the first process
        names -= {"unpadded"}
    changed = {
        field.rstrip("_"): getattr(training, field)
        for field in sorted(names)
        if getattr(training, field) != getattr(PretrainConfig, field, None)
    }
    return {name: dict(sorted((options | changed).items()))}  # in whatever order they came


def _source_of(option: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(option)


def _report(outcome: "Outcome", out: Path, training: PretrainConfig) -> None:
    """Print the outcome; a stopped run exits with code 75."""
    from clozeline.train.engine.distributed import is_main_process
    from clozeline.train.evaluation.evaluate import as_table

    budget = f"in {training.for_}" if training.for_ else f"of {training.max_steps}"
    reached = f"step {outcome.step} {budget}"
    if is_main_process():
        for line in as_table(outcome.heldout) if outcome.heldout else ():
            click.echo(line)
        if outcome.is_complete:
            done = "" if outcome.is_new else "already complete: "
            click.echo(f"{done}{reached}: {typed_path(out)}")
            print_next_for(out)
        else:
            click.echo(f"Stopped at {reached}; checkpoint saved. Add `--resume` to continue.")
    if not outcome.is_complete:
        click.get_current_context().exit(STOPPED)
