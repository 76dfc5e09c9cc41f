"""Command line options from config classes: each default, type and explanation exists once.

A field of a frozen dataclass with a `#:` comment above it becomes an option:

    #: Tokens of an example at most.         ->   --max-seq-length INTEGER  Tokens of an example
    max_seq_length: int = 128                                  at most.  [default: 128]
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

Config = TypeVar("Config")
Command = Callable[..., Any]


class Place(click.ParamType):
    """A local path, or a URL of a store that fsspec knows."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Raises InputError for a store that cannot be reached."""
        from pipeline.common.paths import path_of

        return path_of(value)


def options_of(config_class: type) -> Callable[[Command], Command]:
    """A decorator that gives a command one option for each field of the config."""
    comments = _comments(config_class)
    hints = get_type_hints(config_class)

    def decorate(command: Command) -> Command:
        for field in reversed(fields(config_class)):
            option = _option(field.name, hints[field.name], field.default, comments[field.name])
            command = option(command)
        return command

    return decorate


def config_or_usage_error(config_class: type[Config], values: dict[str, Any]) -> Config:
    """The config, or click's usage error with the config's own words."""
    names = {field.name for field in fields(config_class)}  # type: ignore[arg-type]
    try:
        return config_class(**{name: value for name, value in values.items() if name in names})
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _option(name: str, hint: Any, default: Any, comment: str) -> Callable[[Command], Command]:
    flag = "--" + name.rstrip("_").replace("_", "-")
    keywords: dict[str, Any] = {"help": comment, "default": default, "show_default": True}
    inner = _without_none(hint)
    if inner is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, **keywords)
    if get_origin(inner) is tuple:
        keywords["multiple"] = True
        inner = get_args(inner)[0]
    if get_origin(inner) is Literal:
        inner = click.Choice(get_args(inner))
    elif inner is Path:
        inner = Place()
    return click.option(flag, name, type=inner, **keywords)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def _comments(config_class: type) -> dict[str, str]:
    """The text of the `#:` lines above each field."""
    source = inspect.getsource(config_class)
    found = re.findall(r"((?:^ *#:.*\n)+) *(\w+):", source, flags=re.MULTILINE)
    return {name: " ".join(re.findall(r"#: ?(.*)", lines)) for lines, name in found}
