"""Write the reference of commands and Python names into the manual, as plain Markdown.

    python docs/write_reference.py      ->  docs/manual/commands.md, docs/manual/python.md

What stands above the line `<!-- reference -->` is written by hand and stays.
"""

import inspect
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import click

import clozeline
from clozeline.pipeline.commandline.command import Command, group_of
from clozeline.train.cli import main

MANUAL = Path(__file__).parent / "manual"
MARK = "<!-- reference -->\n"
#: The public names in the order of the data flow, with the methods that are part of the promise.
NAMES: dict[str, tuple[str, ...]] = {
    "make_tokenizer": (),
    "load_tokenizer": (),
    "Tokenizer": ("__call__", "encode", "decode"),
    "build_shards": (),
    "DataConfig": (),
    "JobOptions": (),
    "read_manifest": (),
    "verify": (),
    "Loader": ("__iter__", "state_dict", "load_state_dict"),
    "BertConfig": (),
    "BertForPretraining": ("forward",),
    "preset": (),
    "pretrain": (),
    "PretrainConfig": (),
    "evaluate": (),
    "load_run": (),
    "load_pretrained": (),
    "finetune": (),
    "FinetuneConfig": (),
    "load_classifier": (),
    "predict": (),
    "fill": (),
    "export": (),
    "ClozelineError": (),
    "InputError": (),
}


def command_lines(name: str, command: click.Command) -> list[str]:
    """The section of a command: its usage, help, options by group, and example."""
    context = click.Context(command, **command.context_settings)
    usage = f"Usage: clozeline {name} {' '.join(command.collect_usage_pieces(context))}"
    lines = [
        f"## clozeline {name}",
        "",
        "```",
        usage,
        "```",
        "",
        inspect.cleandoc(command.help or ""),
    ]
    groups: dict[str, list[str]] = {}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record and not isinstance(param, click.Argument):
            groups.setdefault(group_of(param), []).append(f"- `{record[0]}`: {record[1].strip()}")
    for group, options in groups.items():
        lines += ["", f"**{group}**", "", *options]
    if isinstance(command, Command):
        lines += ["", "```", command.example, "```"]
    return [*lines, ""]


def name_lines(name: str, methods: tuple[str, ...]) -> list[str]:
    """The section of a public name: its signature, its docstring, and those of its methods."""
    found = getattr(clozeline, name)
    lines = [f"### {name}", "", *_described(name, found)]
    for method in methods:
        lines += [f"#### `{name}.{method}`", "", *_described(method, getattr(found, method))]
    return lines


def _described(name: str, found: Any) -> list[str]:
    """The signature of a name and its docstring, in which examples are indented: code."""
    signature = inspect.signature(found, eval_str=True)
    shown, result = _parameters(signature), _annotation(signature.return_annotation)
    arrow = f" -> {result}" if result and not inspect.isclass(found) else ""
    call = f"{name}({', '.join(shown)}){arrow}"
    if len(call) > 100:
        call = "\n".join([f"{name}(", *("    " + text + "," for text in shown), f"){arrow}"])
    text = re.sub(
        r"^>>> (?:.+\n?)+",
        lambda example: textwrap.indent(example[0], "    "),
        inspect.getdoc(found) or "",
        flags=re.M,
    )
    return ["```text", call, "```", "", text, ""]


def _parameters(signature: inspect.Signature) -> list[str]:
    """ "size: int = 3", without the modules of types; a `*` before those that need their name."""
    found = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        name = stars.get(parameter.kind, "") + parameter.name
        default = (
            "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        )
        found.append(f"{name}: {_annotation(parameter.annotation)}{default}")
    return found


def _annotation(hint: Any) -> str:
    """A type as it is written: `float | Literal["auto"] | None` is a Union when it is evaluated."""
    if hint is inspect.Signature.empty:
        return ""
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_annotation, get_args(hint)))
    text = re.sub(r"[\w.]+\.(?=\w)", "", inspect.formatannotation(hint))
    return "None" if text == "NoneType" else text


def _default(value: object) -> str:
    if isinstance(value, Mapping):
        return repr(dict(value))
    return "..." if re.search("<factory>| at 0x", repr(value)) else repr(value)


def pages() -> dict[str, str]:
    """The text of each page below its mark."""
    commands = [line for name in main.commands for line in command_lines(name, main.commands[name])]
    names = [line for name, methods in NAMES.items() for line in name_lines(name, methods)]
    return {
        "commands.md": "\n".join(line.rstrip() for line in "\n".join(commands).split("\n")),
        "python.md": "\n".join(line.rstrip() for line in "\n".join(names).split("\n")),
    }


def written(page: str, text: str) -> str:
    """The whole page with this reference."""
    above, mark, _ = (MANUAL / page).read_text("utf-8").partition(MARK)
    assert mark, f"{page} has no line {MARK!r}"
    return f"{above}{mark}\n{text.rstrip()}\n"


if __name__ == "__main__":
    for page, text in pages().items():
        (MANUAL / page).write_text(written(page, text), "utf-8")
