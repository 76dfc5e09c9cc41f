"""The command `pretrain`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clozeline.model.config import BertConfig
from clozeline.pipeline.commandline.command import Command, grouped_option, recorded_options
from clozeline.pipeline.commandline.config_options import (
    PathOrUrl,
    config_or_usage_error,
    options_of,
)
from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.commandline.next_command import print_next_for
from clozeline.pipeline.common.config_checks import seconds
from clozeline.pipeline.common.errors import STOPPED
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.config import KEPT_FIELDS, RECIPE_FIELDS, PretrainConfig, effective_fields
from clozeline.train.engine.signals import handled
from clozeline.train.pretraining.recipes import (
    CONTINUED,
    DEFAULT_PRESET,
    CoolDown,
    check_origin,
    recipe_of,
    resolve,
)
from clozeline.train.pretraining.run_options import RunOptions
from clozeline.train.store.folder_option import Folder

if TYPE_CHECKING:
    from clozeline.train.artifacts.run import RunConfig
    from clozeline.train.engine.distributed import World
    from clozeline.train.pretraining.plan import Plan
    from clozeline.train.pretraining.trainer import Outcome

FOLDER = PathOrUrl()
OUT = Folder(writes=True)
#: Options that choose the model and its first weights.
ORIGINS = ("preset", "dropout", "start_from", "init", "cool_down_from")
#: The options that say where the run starts: see `find_start`.
SOURCES = ("resume", "overwrite", "start_from", "init", "cool_down_from")


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
def pretrain(shards: Path, out: Path, **options: Any) -> None:
    """Pretrain a model on shards, in one process or under torchrun.

    Options that are left out come from the preset's recipe (--print-recipe). A resumed run keeps
    its model and its options; give again --check-shards, --shard-cache and its limit,
    --eval-every, --track, and those of speed and memory other than --precision. With
    --start-from or --init, the architecture is that of the given run or folder, unless --preset is
    given as well. A run that starts from another may have longer examples: the model then gets
    more positions. SIGTERM and SIGINT save a checkpoint, if there was a step, and exit with code
    75; SIGUSR1 saves one.

    --cool-down-from makes a finished model of a run with a constant learning rate, from any of its
    checkpoints; --max-steps counts the steps of that run, too, and defaults to a quarter more.
    """
    run = RunOptions(**{field.name: options.pop(field.name) for field in fields(RunOptions)})
    sources = _sources(run, options)
    for name in KEPT_FIELDS:  # in which a continued run has values of its own
        if _source_of(name) is ParameterSource.DEFAULT:
            del options[name]
    chosen: dict[str, Any] = {"preset": run.preset, "dropout": run.dropout, "options": options}
    manifest = read_manifest(shards)
    with _world_of(out, run.timeout, writes=not run.print_recipe) as world:
        from clozeline.train.pretraining.plan import make_plan
        from clozeline.train.pretraining.pretrain import train_run
        from clozeline.train.pretraining.start import Start, find_start

        start = find_start(Start(out=out, **sources), world)
        plan = world.broadcast_from_main(lambda: make_plan(manifest, start, world, **chosen))
        training = config_or_usage_error(PretrainConfig, options | plan.values)
        if run.print_recipe:
            _print_recipe(shards, plan, training, world)
            return
        outcome = train_run(
            shards,
            start,
            world,
            model=plan.model,
            training=training,
            profile=run.profile or 0,
            track=run.track,
            note=plan.note,
            options=_reproducing(training, start.existing),
        )
    _report(outcome, out, training)


@contextmanager
def _world_of(out: Path, timeout: str, *, writes: bool) -> Iterator["World"]:
    """All processes of the run, which hold the lock of its folder if they write there.

    From here on SIGTERM ends a process that writes there in one line.
    """
    with _stoppable() if writes else nullcontext():
        from clozeline.train.engine.distributed import join_world
        from clozeline.train.engine.lost_process import lost_process_in_one_line
        from clozeline.train.pretraining.start import locked_run

        with (
            join_world(patience=timedelta(seconds=seconds(timeout, name="timeout"))) as world,
            lost_process_in_one_line(world),
            locked_run(out, world) if writes else nullcontext(),
        ):
            yield world


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the process with code 75, and SIGUSR1 does nothing: there is nothing to save.

    From the first step to the last one, `StopAndBudget` receives them.
    """

    def receive(kind: int, _: object) -> None:
        if kind == signal.SIGTERM:
            sys.exit(STOPPED)

    try:
        with handled((signal.SIGTERM, signal.SIGUSR1), receive):
            yield
    except SystemExit as end:
        if end.code == STOPPED and os.environ.get("RANK", "0") == "0":  # torch may be half imported
            click.echo("Stopped. Add `--resume` to continue.")
        raise


def _print_recipe(shards: Path, plan: "Plan", training: PretrainConfig, world: "World") -> None:
    from clozeline.train.data.phases import find_phases
    from clozeline.train.pretraining.run_summary import phase_lines

    phases = find_phases(shards, plan.manifest, training)
    if world.is_main:
        click.echo("\n".join([*plan.lines(), *phase_lines(phases, training)]))


def _reproducing(training: PretrainConfig, continued: "RunConfig | None") -> dict[str, Any]:
    """The options that reproduce the run, even if the recipe has changed since.

    Those in ORIGINS that the command leaves out are taken from the `continued` run.
    """
    [(name, given)] = recorded_options().items()
    earlier = continued.options.get(name, {}) if continued else {}
    kept = ORIGINS[:2] if given.keys() & set(ORIGINS[2:]) else ORIGINS
    given |= {x: earlier[x] for x in kept if x in earlier and x not in given}
    names = {*effective_fields(training.schedule), *KEPT_FIELDS}
    if given.get("cool_down_from"):
        names -= {"warmup", "cool_down"}  # computed from RUN@STEP and --max-steps
    changed = {
        field.rstrip("_"): getattr(training, field)
        for field in sorted(names)
        if getattr(training, field) != getattr(PretrainConfig, field, None)
    }
    return {name: dict(sorted((given | changed).items()))}  # in whatever order they came


def _sources(run: RunOptions, options: dict[str, Any]) -> dict[str, Any]:
    """Where the run starts, by option; all options are checked. Raises UsageError."""
    _check_options(run, options)
    sources = {name: getattr(run, name) for name in SOURCES}
    if (text := run.cool_down_from) is not None:  # its run may be in a store
        context = click.get_current_context()
        folder = Folder()
        sources["cool_down_from"] = CoolDown.parse(text, lambda x: folder.convert(x, None, context))
    return sources


def _check_options(run: RunOptions, options: dict[str, Any]) -> None:
    """Check the options before torch is imported. Raises UsageError and InputError."""
    check_origin(vars(run) | options)
    # A --config file may have both.
    if options["for_"] and _source_of("max_steps") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--for and --max-steps each end the run; give one.")
    try:
        recipe_of(run.preset or DEFAULT_PRESET)
        seconds(run.timeout, name="timeout")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    given = {name: options[name] for name in RECIPE_FIELDS if options[name] is not None}
    possible = resolve(CONTINUED, {}, model=BertConfig(), examples=1)
    values = {name: possible[name].value for name in RECIPE_FIELDS}
    values["optimizer"] = "muon"  # the plan checks the options against the optimizer of the recipe
    config_or_usage_error(PretrainConfig, options | values | given)


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
            click.echo(f"{done}{reached}: {as_given(out)}")
            print_next_for(out)
        else:
            click.echo(f"Stopped at {reached}; checkpoint saved. Add `--resume` to continue.")
    if not outcome.is_complete:
        click.get_current_context().exit(STOPPED)
