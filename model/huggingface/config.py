"""Converts config.json of a Hugging Face folder from and to a `BertConfig`.

A `BertConfig` has fields that transformers' BERT lacks, and config.json has settings that plain
BERT lacks. Only what both can express is converted; everything else is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from model.config import RATES, SIZES, BertConfig
from model.huggingface.weight_files import read_json, refuse_tensorflow

CONFIG = "config.json"
# The parts of each architecture besides the encoder. A bare model may have a pooler or none.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertForPreTraining": ("pooler", "mlm_head", "nsp_head"),
    "BertForMaskedLM": ("mlm_head",),
    "BertForSequenceClassification": ("pooler", "classifier"),
    "BertModel": (),
}
PRETRAINING, MASKED_LM, CLASSIFICATION, BARE = ARCHITECTURES
SHARED = (*SIZES, "hidden_act", *RATES)  # fields with the same name in both
# Hugging Face -> BertConfig; of two names of one function the last one is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
# Settings that can turn BERT into another model, with the values of plain BERT.
PLAIN: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "tie_word_embeddings": True,
    "pruned_heads": None,
    "quantization_config": None,
    "auto_map": None,
}


@dataclass(frozen=True, kw_only=True)
class HuggingFaceConfig:
    """The content of a config.json."""

    model: BertConfig
    architecture: str | None = None  # one of ARCHITECTURES; None: not given, as by Google
    labels: tuple[str, ...] = ()  # class names of a classifier


def read_huggingface_config(folder: Path) -> HuggingFaceConfig:
    """The config of a folder. Raises ValueError if there is none or it is not plain BERT."""
    refuse_tensorflow(folder)
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} is not a Hugging Face folder (it has no {CONFIG}).")
    values = read_json(path)
    architecture = _architecture(path, values)
    for name, plain in PLAIN.items():
        if values.get(name, plain) not in (plain, None, {}):
            raise ValueError(
                f"{path}: {name} is {values[name]!r}; only plain BERT is supported ({plain})."
            )
    shared = {name: values[name] for name in SHARED if values.get(name) is not None}
    act = str(shared.get("hidden_act", BertConfig.hidden_act))
    if act not in ACTIVATIONS:
        raise ValueError(f"{path}: hidden_act is {act!r}; supported: {', '.join(ACTIVATIONS)}.")
    try:
        model = BertConfig(**{**shared, "hidden_act": ACTIVATIONS[act]})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    labels = _labels(path, values) if architecture == CLASSIFICATION else ()
    return HuggingFaceConfig(model=model, architecture=architecture, labels=labels)


def huggingface_config(
    config: BertConfig, *, architecture: str, labels: tuple[str, ...] = (), pad_id: int = 0
) -> dict[str, Any]:
    """The values of a config.json. Raises ValueError for what `transformers` cannot express."""
    check_expressible(config)
    act = {name: huggingface for huggingface, name in ACTIVATIONS.items()}[config.hidden_act]
    values = {name: getattr(config, name) for name in SHARED}
    values |= {"hidden_act": act, "pad_token_id": pad_id}
    values |= {"architectures": [architecture], "model_type": "bert"}
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    return values


def check_expressible(config: BertConfig) -> None:
    """Raises ValueError where the BERT of `transformers` lacks a feature of the model."""
    unsupported = [
        f"{field.name} {getattr(config, field.name)!r}"
        for field in fields(BertConfig)
        if field.name not in SHARED and getattr(config, field.name) != field.default
    ]
    if config.hidden_act not in ACTIVATIONS.values():
        unsupported.append(f"hidden_act {config.hidden_act!r}")
    if unsupported:
        others = f" (one of {len(unsupported)} differences)" if unsupported[1:] else ""
        raise ValueError(
            f"the BERT of transformers has no {unsupported[0]}{others}; "
            "to export, pretrain with a preset from bert-tiny to bert-large."
        )


def _architecture(path: Path, values: Mapping[str, Any]) -> str | None:
    kind, named = values.get("model_type", "bert"), values.get("architectures") or None
    first = named[0] if isinstance(named, list) else named
    if kind != "bert" or str(first) not in ("None", *ARCHITECTURES):
        found = f"model_type {kind!r}" + (f", architecture {first!r}" if first else "")
        raise ValueError(
            f"{path} describes another model ({found}); supported are model_type 'bert' and "
            f"{', '.join(ARCHITECTURES)}."
        )
    return first


def _labels(path: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    task = values.get("problem_type")
    if task not in (None, "single_label_classification"):
        raise ValueError(f"{path}: problem_type is {task!r}; only a single label is supported.")
    count = values.get("num_labels", 2)
    names = values.get("id2label") or {
        str(i): f"LABEL_{i}" for i in range(count if type(count) is int else 0)
    }
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))}:
        raise ValueError(f"{path}: id2label is {names}; it needs a name for each of 0, 1, 2, ...")
    if len(names) < 2:
        raise ValueError(f"{path} has {len(names)} label; a classifier needs at least 2.")
    return tuple(str(names[str(i)]) for i in range(len(names)))
