"""The architecture that --preset and --set ask for.

nano                   a preset
small.json             fields of `BertConfig`, or the config.json of a Hugging Face model
bert-base-uncased      the config.json of that model of the Hub
--set hidden_size=320  one field of it changed
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig, preset, refuse_unknown_fields
from clozeline.model.huggingface.config import CONFIG, read_huggingface_config
from clozeline.model.huggingface.weight_files import read_json
from clozeline.pipeline.commandline.hub_model import hub_folder, is_hub_name
from clozeline.pipeline.common.errors import InputError

TYPES = {"int": int, "float": float, "str": str}


def architecture(name: str, changes: Sequence[str] = ()) -> BertConfig:
    """The config of a preset, a file or a model of the Hub, with each FIELD=VALUE of `changes`.

    Raises ValueError for an unknown name or field, and for values that do not fit together.
    """
    return replace(_of_name(name), **dict(map(_change, changes)))


def _of_name(name: str) -> BertConfig:
    if name.endswith(".json"):
        return _of_file(Path(name).expanduser())
    try:
        return preset(name)
    except ValueError as error:
        if not is_hub_name(name):
            raise
        try:
            return _of_file(hub_folder(name, weights=False) / CONFIG)
        except InputError:
            raise ValueError(
                f"{error} A model of the Hub with this name could not be loaded either; run "
                f"`hf download {name} {CONFIG} --local-dir DIR`, and give DIR/{CONFIG}."
            ) from None


def _of_file(path: Path) -> BertConfig:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; check the path.")
    values = read_json(path)
    if {"model_type", "architectures"} & values.keys():
        return read_huggingface_config(path.parent, path.name).model
    try:
        return BertConfig(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _change(text: str) -> tuple[str, Any]:
    """ "hidden_size=320" -> ("hidden_size", 320)"""
    name, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise ValueError(f"--set {text}: give FIELD=VALUE, as in hidden_size=320.")
    refuse_unknown_fields([name])
    if name == "vocab_size":
        raise ValueError("--set vocab_size: the vocabulary is that of the shards; leave it out.")
    [kind] = [str(field.type) for field in fields(BertConfig) if field.name == name]
    try:
        if kind == "bool":
            return name, {"true": True, "false": False}[value.lower()]
        return name, TYPES[kind](value)
    except (ValueError, KeyError):
        wanted = "true or false" if kind == "bool" else {"int": "a whole number"}.get(kind, kind)
        raise ValueError(f"--set {text}: {name} is {wanted}.") from None
