"""What all commands have in common: groups of options, an example, a config file, the last line.

Usage: clozeline inspect [OPTIONS] SHARDS
...
Examples:
  -n INTEGER RANGE  Number of examples.  [default: 3; x>=0]
  --seed INTEGER RANGE  ...

General:
  --config FILE     Take options from this file ...
  -h, --help        Show this message and exit.

Example:
  clozeline inspect work/shards -n 5

The last line is the command that usually follows; words in capitals are to be filled in:

Next: clozeline shards SOURCE... --tokenizer work/tokenizer --out work/shards
"""

import shlex
import signal
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

import click

from clozeline.pipeline.commandline.config_options import (
    GroupedOption,
    plain_values,
    read_config,
    typed_path,
)
from clozeline.pipeline.commandline.removed_options import removed_option
from clozeline.pipeline.common.errors import STOPPED, causes, initials
from clozeline.pipeline.common.folders import KINDS, kind_of
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.signals import last_interrupts

#: Groups shown last, whose options are not recorded: they do not affect what a command makes.
OUTPUT, GENERAL = "Output", "General"
REQUIRED = "Required"  #: shown first in the short help
ALL = "clozeline.help_all"  #: key in click's meta
WIDTH = 100


class Command(click.Command):
    """A command with grouped options, an example and `--config`.

    With `common`, the names of the options that most people use, `--help` shows those and the
    required ones, and `--help-all` shows all.
    """

    def __init__(
        self,
        *args: Any,
        example: str,
        kept: str = "",
        common: Collection[str] = (),
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.context_settings = {
            "help_option_names": ["-h", "--help"],
            "max_content_width": WIDTH,
            **self.context_settings,
        }
        self.example = example
        self.kept = kept  # what an interrupted command has kept, and how to continue
        self.common = common
        if all(param.name != "config" for param in self.params):
            self.params.append(
                _general(
                    "--config",
                    _read,
                    "Take options from this TOML file, or from the JSON file of an earlier "
                    "command. Options on the command line win.",
                    metavar="FILE",
                    type=click.Path(),
                )
            )
            if common:
                help_all = "Show all options and exit."
                self.params.append(_general("--help-all", _show_all, help_all, is_flag=True))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if message := removed_option(str(ctx.info_name), error.option_name):
                raise click.UsageError(message, ctx) from error
            options = (name for param in self.params for name in param.opts)
            if meant := [name for name in options if initials(name) == error.option_name]:
                words = f"{error.message} Did you mean '{meant[0]}'?"
                raise click.UsageError(words, ctx) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of each group; all descriptions begin in the same column."""
        is_short = bool(self.common) and not ctx.meta.get(ALL)
        groups: dict[str, list[tuple[str, str]]] = {REQUIRED: []}
        for param in self.get_params(ctx):
            record, group = param.get_help_record(ctx), group_of(param)
            if not record or isinstance(param, click.Argument):
                continue
            if is_short and param.required:
                groups[REQUIRED].append(record)
            elif not is_short or param.name in self.common or group == GENERAL:
                groups.setdefault(group, []).append(record)
        for name in (OUTPUT, GENERAL):
            if name in groups:
                groups[name] = groups.pop(name)
        names = [len(row[0]) for rows in groups.values() for row in rows]
        width = max((length for length in names if length <= 30), default=0)
        for name, rows in groups.items():
            if not rows:
                continue
            with formatter.section(name):
                formatter.write_dl([(row[0].ljust(width), row[1]) for row in rows], col_max=width)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def end_of_interrupted(error: BaseException, command: click.Command | None) -> SystemExit | None:
    """How a command ends if Ctrl-C or SIGTERM is the cause of the error; prints what is kept.

    A library may turn the interrupt into an error of its own, even one without a cause.
    """
    raised = [cause.args for cause in causes(error) if isinstance(cause, KeyboardInterrupt)]
    numbers = [*chain(*raised), *last_interrupts()]
    if not (raised or numbers):
        return None
    kept = getattr(command, "kept", "")
    click.echo(f"\nInterrupted. {kept}".rstrip(" "), err=True)
    return SystemExit(STOPPED if kept else 128 + (numbers or [signal.SIGINT])[0])


def print_next(*words: object) -> None:
    click.echo(f"Next: {shlex.join(['clozeline', *map(str, words)])}", err=True)


def print_next_for(folder: AnyPath) -> None:
    """Print what follows a data set, a run or a classifier; nothing for another folder."""
    kind = kind_of(folder)
    if kind and (words := KINDS[kind].next.split()):
        names = {"run": sibling(folder, "run"), "classifier": sibling(folder, "classifier")}
        print_next(*(word.format(folder=typed_path(folder), **names) for word in words))


def sibling(folder: AnyPath, name: str) -> str:
    """A folder of this name next to another; in the working directory if that is in a store.

    work/shards, "run" -> work/run    work/run, "run" -> work/run-2
    """
    if "://" in typed_path(folder):
        return name
    return str(folder.parent / (f"{name}-2" if folder.name == name else name))


def group_of(param: click.Parameter) -> str:
    """The group of an option; --help, which click adds, is a general one."""
    return getattr(param, "group", GENERAL)


def recorded_options() -> dict[str, Any]:
    """The options of the running command that decide what it makes, as `--config` reads them.

    {"pretrain": {"shards": "work/shards", "preset": "nano", "seed": 0, ...}}
    """
    context = click.get_current_context()
    decide = {
        str(param.name)
        for param in context.command.params
        if isinstance(param, click.Argument) or group_of(param) not in (OUTPUT, GENERAL)
    }
    return {str(context.info_name): plain_values(context, only=decide)}


def _general(name: str, callback: Callable[..., None], help: str, **more: Any) -> click.Option:
    """An option of every command: its callback runs before the other options are read."""
    more |= {"is_eager": True, "expose_value": False}
    return GroupedOption([name], group=GENERAL, callback=callback, help=help, **more)


def _show_all(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[ALL] = True
        click.echo(context.get_help())
        context.exit()


def _read(context: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and not context.resilient_parsing:
        context.default_map = read_config(value, context)
