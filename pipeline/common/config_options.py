"""Command-line options from config classes: each default, type and help text is written once.

A field of a frozen dataclass that is declared with `option` becomes an option of a command:

    max_seq_length: int = option(128, "Maximum tokens per example.")
    ->  --max-seq-length INTEGER  Maximum tokens per example.  [default: 128]
"""

from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

Config = TypeVar("Config")
Command = Callable[..., Any]
Value = TypeVar("Value")


def option(default: Value, help: str) -> Value:
    """A config field with its default and its help text."""
    return field(default=default, metadata={"help": help})


class PathOrUrl(click.ParamType):
    """A local path, or the URL of a store that fsspec can open."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Raises InputError for a store that cannot be reached."""
        from pipeline.common.paths import path_of

        return path_of(value)


def options_of(config_class: type) -> Callable[[Command], Command]:
    """A decorator that gives a command one option for each field of the config."""
    hints = get_type_hints(config_class)

    def decorate(command: Command) -> Command:
        for setting in reversed(fields(config_class)):
            keywords = {"default": setting.default, "help": setting.metadata["help"]}
            command = _click_option(setting.name, hints[setting.name], keywords)(command)
        return command

    return decorate


def config_or_usage_error(config_class: type[Config], values: dict[str, Any]) -> Config:
    """The config built from those `values` that are its fields.

    Raises click's UsageError with the message of the config's own ValueError.
    """
    names = {setting.name for setting in fields(config_class)}  # type: ignore[arg-type]
    try:
        return config_class(**{name: value for name, value in values.items() if name in names})
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _click_option(name: str, hint: Any, keywords: dict[str, Any]) -> Callable[[Command], Command]:
    flag = "--" + name.rstrip("_").replace("_", "-")  # `for_` is the field of --for
    keywords = {**keywords, "show_default": True}
    inner = _without_none(hint)
    if inner is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, **keywords)
    if get_origin(inner) is tuple:
        keywords["multiple"] = True
        inner = get_args(inner)[0]
    if get_origin(inner) is Literal:
        inner = click.Choice(get_args(inner))
    elif inner is Path:
        inner = PathOrUrl()
    return click.option(flag, name, type=inner, **keywords)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        return next(part for part in get_args(hint) if part is not type(None))
    return hint
