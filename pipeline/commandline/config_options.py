"""Command-line options from config classes: each default, type and help text is written once.

A field of a frozen dataclass that is declared with `option` becomes an option of a command:

    max_seq_length: int = option(128, "Maximum tokens per example.", group="Examples")
    ->  --max-seq-length INTEGER  Maximum tokens per example.  [default: 128]

A file may give options, too (`--config`):

    [pretrain]                the options of `clozeline pretrain`; those of others are ignored
    shards = "work/shards"    an argument, by its name
    max_steps = 10_000        --max-steps; a dash is as good as an underscore

The table's name may be left out. A JSON file that a command wrote has the same under "options".
"""

import re
import tomllib
from collections.abc import Callable, Collection
from dataclasses import MISSING, field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from clozeline.pipeline.commandline.removed_options import removed_option
from clozeline.pipeline.common.errors import InputError, did_you_mean, one_line
from clozeline.pipeline.common.json_files import json_values
from clozeline.pipeline.common.paths import AnyPath, local_path, path_of

if TYPE_CHECKING:
    ParamType = click.ParamType[Any, Any]
else:  # click before 8.5: not generic
    ParamType = click.ParamType

Config = TypeVar("Config")
Command = Callable[..., Any]
Value = TypeVar("Value")

AT_LEAST_ONE = click.IntRange(min=1)
GIVEN = "clozeline.given"  #: key in click's meta


class GroupedOption(click.Option):
    def __init__(self, *args: Any, group: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


def grouped_option(*names: str, group: str, **attributes: Any) -> Callable[[Any], Any]:
    """`click.option`, with the group that lists it in the help."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


def option(default: Value, help: str, *, group: str, **attributes: Any) -> Value:
    """A config field with its default, its help text and its group in the help.

    `attributes` are click's, such as `is_flag`, `metavar` and `type`; `off` is the name that turns
    a boolean off, if not "no-...".
    """
    return field(default=default, metadata={"help": help, "group": group} | attributes)


def chosen_option(help: str, *, group: str, **attributes: Any) -> Any:
    """A config field without a default: if the option is not given, the command chooses."""
    return field(metadata={"help": help, "group": group} | attributes)


def chosen_fields(config_class: type) -> tuple[str, ...]:
    """The names of the fields that are declared with `chosen_option`."""
    return tuple(field.name for field in fields(config_class) if field.default is MISSING)


def note_given(path: object, given: str) -> None:
    """Remember what the user gave for a path, for the rest of the command.

    s3://bucket/run  ->  ~/.cache/clozeline/5f0c.../run    typed_path(that) -> "s3://bucket/run"
    """
    click.get_current_context().meta.setdefault(GIVEN, {})[str(path)] = given


def typed_path(path: Any) -> str:
    """The path as the user gave it, or else the path itself."""
    context = click.get_current_context(silent=True)
    given: dict[str, str] = context.meta.get(GIVEN, {}) if context else {}
    return given.get(str(path), str(path))


class PathOrUrl(ParamType):
    """A local path, or the URL of a store that fsspec can open."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> AnyPath:
        """Raises InputError for what is not a path, and for a store that cannot be reached."""
        path = path_of(value)
        if ctx and str(value).startswith("~"):
            with ctx.scope(cleanup=False):
                note_given(path, str(value))
        return path

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class LocalPath(PathOrUrl):
    """A path on this machine."""

    def convert(self, value: Any, param: Any, ctx: Any) -> AnyPath:
        """Raises InputError for what is not a path, and for a URL."""
        if "://" in str(value):
            raise InputError(f"{value} is a URL; give a path on this machine.")
        return super().convert(value, param, ctx)


class NumberOrWord(ParamType):
    """A number or one of a few words, as in `--epochs 3` and `--epochs auto`."""

    def __init__(self, number: type[int] | type[float], words: tuple[str, ...]) -> None:
        self.number, self.words = number, words
        self.name = f"{'integer' if number is int else 'float'}|{'|'.join(words)}"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | float | str:
        if value in self.words:
            return str(value)
        try:
            return self.number(value)
        except ValueError:
            self.fail(f"{value!r} is not a {self.name.replace('|', ' or ')}.", param, ctx)


def options_of(
    config_class: type, *, leave_out: Collection[str] = ()
) -> Callable[[Command], Command]:
    """A decorator that gives a command an option for each config field not in `leave_out`."""
    hints = get_type_hints(config_class)

    def decorate(command: Command) -> Command:
        for setting in reversed([f for f in fields(config_class) if f.name not in leave_out]):
            keywords: dict[str, Any] = {"default": None, **setting.metadata}
            if setting.default is not MISSING:
                keywords["default"] = setting.default
                keywords.setdefault("show_default", setting.default != "")  # a text that says it
            command = _click_option(setting.name, hints[setting.name], keywords)(command)
        return command

    return decorate


def config_or_usage_error(config_class: type[Config], values: dict[str, Any]) -> Config:
    """The config built from those `values` that are its fields.

    Raises click's UsageError with the message of the config's own ValueError, which there names
    options: "batch_size is -5; ..." -> "--batch-size is -5; ...".
    """
    names = {setting.name for setting in fields(config_class)}  # type: ignore[arg-type]
    try:
        return config_class(**{name: value for name, value in values.items() if name in names})
    except ValueError as error:
        message = str(error)
        for name in names:  # a short name may also be a word of the sentence
            where = rf"\b{name}\b" if "_" in name.rstrip("_") else rf"^{name.rstrip('_')}\b"
            message = re.sub(where, option_name(name), message)
        raise click.UsageError(message) from error


def option_name(name: str) -> str:
    """The option of a field: "batch_size" -> "--batch-size", "for_" -> "--for"."""
    return "--" + name.rstrip("_").replace("_", "-")


def _click_option(name: str, hint: Any, keywords: dict[str, Any]) -> Callable[[Command], Command]:
    flag = option_name(name)
    inner = _without_none(hint)
    if "type" in keywords or "is_flag" in keywords:
        return grouped_option(flag, name, **keywords)
    if inner is bool:
        off = keywords.pop("off", f"no-{flag[2:]}")
        return grouped_option(f"{flag}/--{off}", name, **keywords)
    if get_origin(inner) is tuple:
        keywords["multiple"] = True
        inner = get_args(inner)[0]
    return grouped_option(flag, name, type=_click_type(inner), **keywords)


def _click_type(hint: Any) -> Any:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is Union:  # a number or a word
        number, words = get_args(hint)
        return NumberOrWord(number, get_args(words))
    return PathOrUrl() if hint is Path else hint


def _without_none(hint: Any) -> Any:
    """The hint without its `| None`; `float | Literal["auto"]` stays as it is."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    is_optional = get_origin(hint) in (UnionType, Union) and len(parts) < len(get_args(hint))
    return Union[tuple(parts)] if is_optional else hint  # noqa: UP007 (made at run time)


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
    values = {
        key_of(param): _plain(context.params[str(param.name)])
        for param in context.command.params
        if param.expose_value and (only is None or param.name in only)
    }
    return {key: value for key, value in values.items() if value is not None}


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
    return value if isinstance(value, bool | int | float | None) else typed_path(value)
