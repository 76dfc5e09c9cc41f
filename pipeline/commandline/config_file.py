"""Options of a command from a file.

[pretrain]                the options of `clozeline pretrain`; tables of other commands are ignored
shards = "work/shards"    an argument, by its name
max_steps = 10_000        --max-steps; a dash is as good as an underscore

The table's name may be left out. A JSON file that a command wrote has the same under "options".
"""

import tomllib
from collections.abc import Collection
from typing import Any

import click

from clozeline.pipeline.commandline.next_command import as_given
from clozeline.pipeline.commandline.removed_options import removed_option
from clozeline.pipeline.common.errors import InputError, did_you_mean, one_line
from clozeline.pipeline.common.json_files import json_values
from clozeline.pipeline.common.paths import local_path

OPTIONS = "options"  #: key in a JSON file


def read_config(path: str, context: click.Context) -> dict[str, Any]:
    """The file's values for the context's command, by parameter name.

    Raises InputError, naming the file and the key, for anything that the command does not take.
    """
    name = str(context.info_name)
    tables = _tables(path)
    group = context.parent.command if context.parent else None
    others = set(group.commands) if isinstance(group, click.Group) else set()
    given = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    for key, value in tables.items():
        if key == name and isinstance(value, dict):
            given |= value
        elif isinstance(value, dict) and key not in others:
            raise InputError(f"{path}: [{key}] is not a command{did_you_mean(key, others)}")
    if not given and tables.keys() - {name}:
        table = "" if path.endswith(".json") else f"add a table [{name}], or "
        raise InputError(
            f"{path} has options of `clozeline {', '.join(tables)}`, none of `clozeline {name}`; "
            f"{table}give another file."
        )
    params = {key_of(param): param for param in context.command.params if param.expose_value}
    values = {}
    for key, value in given.items():
        param = params.get(key.replace("-", "_"))
        if param is None:
            if message := removed_option(name, f"--{key.replace('_', '-')}"):
                raise InputError(f"{path}: {message}")
            raise InputError(
                f"{path}: {key} is not an option of `clozeline {name}`"
                f"{did_you_mean(key.replace('-', '_'), params)}"
            )
        values[str(param.name)] = _as_text(value, param, context, f"{path}: {key}")
    return values


def key_of(param: click.Parameter) -> str:
    """The name of a parameter in a file: "max_steps" of --max-steps; an argument's own name."""
    long = [name for name in param.opts if name.startswith("--")]
    return long[0][2:].replace("-", "_") if long else str(param.name)


def plain_values(context: click.Context, *, only: Collection[str] | None = None) -> dict[str, Any]:
    """A command's parameter values as a file holds them, without those that are None."""
    found = {
        key_of(param): _plain(context.params[str(param.name)])
        for param in context.command.params
        if param.expose_value and (only is None or param.name in only)
    }
    return {key: value for key, value in found.items() if value is not None}


def _tables(path: str) -> dict[str, Any]:
    """The content of the file: options, and tables of options by command."""
    if path.endswith(".json"):
        with json_values(
            local_path(path),
            "give a file that `clozeline pretrain` or `clozeline finetune` wrote, or a TOML file",
        ) as values:
            return dict(values[OPTIONS])
    try:
        return tomllib.loads(local_path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as TOML ({one_line(error)}).") from error


def _as_text(value: Any, param: click.Parameter, context: click.Context, where: str) -> Any:
    """The value as it would be typed, or a list of such values.

    Raises InputError for a value of the wrong type, or one that the option refuses.
    """
    takes_many = param.nargs == -1 or getattr(param, "multiple", False)
    parts = value if isinstance(value, list) else [value]
    if takes_many is not isinstance(value, list) or any(isinstance(x, dict | list) for x in parts):
        raise InputError(f"{where} is {value}; give {'a list' if takes_many else 'one value'}.")
    texts = list(map(str, parts))
    if not any("://" in text for text in texts):  # a store is opened once
        try:
            param.type_cast_value(context, texts if takes_many else texts[0])
        except click.BadParameter as error:
            raise InputError(f"{where}: {error.message}") from error
    return texts if takes_many else texts[0]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, bool | int | float | None) else as_given(value)
