"""What all commands have in common: options in groups, an example, and a config file.

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
"""

from collections.abc import Callable
from typing import Any

import click

from clozeline.pipeline.commandline.config_file import plain_values, read_config
from clozeline.pipeline.commandline.removed_options import removed_option
from clozeline.pipeline.common.errors import causes

#: Groups shown last, whose options are not recorded: they do not affect what a command makes.
OUTPUT, GENERAL = "Output", "General"
WIDTH = 100


class GroupedOption(click.Option):
    def __init__(self, *args: Any, group: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


def grouped_option(*names: str, group: str, **attributes: Any) -> Callable[[Any], Any]:
    """`click.option`, with the group that lists it in the help."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


class Command(click.Command):
    """A command with grouped options, an example and `--config`."""

    def __init__(self, *args: Any, example: str, kept: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.context_settings = {
            "help_option_names": ["-h", "--help"],
            "max_content_width": WIDTH,
            **self.context_settings,
        }
        self.example = example
        self.kept = kept  # what an interrupted command has kept, and how to continue
        if all(param.name != "config" for param in self.params):
            self.params.append(_config_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if message := removed_option(str(ctx.info_name), error.option_name):
                raise click.UsageError(message, ctx) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of each group; all descriptions begin in the same column."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and not isinstance(param, click.Argument):
                groups.setdefault(group_of(param), []).append(record)
        for name in (OUTPUT, GENERAL):
            if name in groups:
                groups[name] = groups.pop(name)
        names = [len(row[0]) for rows in groups.values() for row in rows]
        width = max((length for length in names if length <= 30), default=0)
        for name, rows in groups.items():
            with formatter.section(name):
                formatter.write_dl([(row[0].ljust(width), row[1]) for row in rows], col_max=width)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if self.kept and is_interrupted(error):
                click.echo(f"\nInterrupted. {self.kept}", err=True)
            raise


def is_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause: a library may turn it into an import error of its own."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in causes(error))


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


def _config_option() -> click.Option:
    return GroupedOption(
        ["--config"],
        group=GENERAL,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read,
        type=click.Path(),
        help="Take options from this TOML file, or from the JSON file in which an earlier "
        "command recorded its own. Options on the command line win.",
    )


def _read(context: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and not context.resilient_parsing:
        context.default_map = read_config(value, context)
