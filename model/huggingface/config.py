"""Converts config.json of a Hugging Face folder from and to a `BertConfig`.

A `BertConfig` has fields that the BERT and ModernBERT of transformers lack, and config.json has
settings that are not supported here. Only what both can express is converted; everything else is
refused by name.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clozeline.model.config import MODERN_BERT, RATES, SIZES, BertConfig, Pooling
from clozeline.model.huggingface.weight_files import conversion, read_json

CONFIG = "config.json"
# The parts of each architecture besides the encoder. A bare model may have a pooler or none.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertForPreTraining": ("pooler", "mlm_head", "nsp_head"),
    "BertForMaskedLM": ("mlm_head",),
    "BertForSequenceClassification": ("pooler", "classifier"),
    "BertModel": (),
    "ModernBertForMaskedLM": ("mlm_head",),
    "ModernBertForSequenceClassification": ("transform", "classifier"),
    "ModernBertModel": (),
}
CLASSIFICATION = tuple(name for name in ARCHITECTURES if name.endswith("SequenceClassification"))
# Fields with the same name in both; ModernBERT has other names for some.
MODERN_FIELDS = ("global_attn_every_n_layers", "local_attention")
MODERN_THETAS = ("global_rope_theta", "local_rope_theta")
SHARED = tuple(
    name for name in (*SIZES, "hidden_act", *RATES) if name not in (*MODERN_FIELDS, *MODERN_THETAS)
)
MODERN_NAMES = {
    **{name: name for name in (*SIZES, *RATES) if name != "type_vocab_size"},
    "hidden_act": "hidden_activation",
    # Dropout is not part of the weights. transformers applies it in other places of a layer.
    "hidden_dropout_prob": "mlp_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
    "head_bias": "decoder_bias",
}
# What a missing setting means in transformers, where our default differs.
MODERN_DEFAULTS = {
    "max_position_embeddings": 8192,
    "mlp_dropout": 0.0,
    "attention_dropout": 0.0,
    "norm_eps": 1e-5,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
}
# Hugging Face -> BertConfig; if two names mean the same function, the last is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
# Settings that can turn a model into another one, with the values that are supported.
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
MODERN_PLAIN: dict[str, Any] = {
    **PLAIN,
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "classifier_bias": False,
    "rope_scaling": None,
}


@dataclass(frozen=True, kw_only=True)
class HuggingFaceConfig:
    """The content of a config.json."""

    model: BertConfig
    model_type: str  # "bert" or "modernbert"
    architecture: str | None = None  # one of ARCHITECTURES; None: not given, as in Google's
    labels: tuple[str, ...] = ()  # class names of a classifier
    pooling: Pooling = "cls"  # of a classifier


def read_huggingface_config(folder: Path, file: str = CONFIG) -> HuggingFaceConfig:
    """The config of a folder. Raises ValueError if it has none, or one of an unsupported model."""
    path = folder / file
    if not path.is_file():
        raise ValueError(
            f"{folder} is not a Hugging Face folder (it has no {CONFIG}).{conversion(folder)}"
        )
    values = read_json(path)
    model_type, architecture = _architecture(path, values)
    is_modern = model_type == "modernbert"
    for name, plain in (MODERN_PLAIN if is_modern else PLAIN).items():
        if values.get(name, plain) not in (plain, None, {}):
            family = "ModernBERT" if is_modern else "BERT"
            raise ValueError(
                f"{path}: {name} is {values[name]!r}; only {plain!r} is supported for {family}."
            )
    pooling: Pooling = values.get("classifier_pooling", "cls") if is_modern else "cls"
    if pooling not in ("cls", "mean"):
        raise ValueError(f"{path}: classifier_pooling is {pooling!r}; known: cls, mean.")
    try:
        model = _modern_model(values) if is_modern else _model(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return HuggingFaceConfig(
        model=model,
        model_type=model_type,
        architecture=architecture,
        labels=_labels(path, values) if architecture in CLASSIFICATION else (),
        pooling=pooling,
    )


def huggingface_config(
    config: BertConfig,
    *,
    architecture: str,
    pooling: Pooling = "cls",
    pad_id: int = 0,
) -> dict[str, Any]:
    """The values of a config.json, without class names.

    Raises ValueError for what `transformers` cannot express.
    """
    model_type = model_type_of(config)
    act = {name: huggingface for huggingface, name in ACTIVATIONS.items()}[config.hidden_act]
    if model_type == "modernbert":
        values = {name: getattr(config, ours) for ours, name in MODERN_NAMES.items()}
        values |= {"hidden_activation": act, "classifier_activation": act}
        values |= dict.fromkeys(("embedding_dropout", "classifier_dropout"), values["mlp_dropout"])
        values |= {"classifier_pooling": pooling}
        # The defaults are ids of the tokenizer of the published models.
        values |= {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")}
    else:
        values = {name: getattr(config, name) for name in SHARED}
        values |= {"hidden_act": act}
    values |= {"pad_token_id": pad_id, "architectures": [architecture], "model_type": model_type}
    return values


def model_type_of(config: BertConfig) -> str:
    """The family of `transformers` that can express a model: "bert" or "modernbert".

    Raises ValueError naming the fields that it does not have.
    """
    plain = {field.name: field.default for field in fields(BertConfig)}
    free, family, like = SHARED, "BERT", "bert-tiny to bert-large"
    if not config.type_vocab_size:
        plain |= MODERN_BERT
        free = (*MODERN_NAMES, "init")  # the initial weights do not matter
        family, like = "ModernBERT", "modern-nano to modern-base"
    unsupported = [
        f"{name} {getattr(config, name)!r}"
        for name, value in plain.items()
        if name not in free and getattr(config, name) != value
    ]
    if unsupported:
        others = f" (one of {len(unsupported)} differences)" if unsupported[1:] else ""
        raise ValueError(
            f"the {family} of transformers has no {unsupported[0]}{others}; "
            f"to export, pretrain with a preset from {like}."
        )
    return family.lower()


def architecture_of(config: BertConfig, *, is_classifier: bool) -> str:
    """The architecture that a run or a classifier is written as. Raises as `model_type_of`."""
    if model_type_of(config) == "modernbert":
        return f"ModernBertFor{'SequenceClassification' if is_classifier else 'MaskedLM'}"
    return f"BertFor{'SequenceClassification' if is_classifier else 'PreTraining'}"


def _model(values: Mapping[str, Any]) -> BertConfig:
    shared = {name: values[name] for name in SHARED if values.get(name) is not None}
    act = shared.get("hidden_act", BertConfig.hidden_act)
    return BertConfig(**{**shared, "hidden_act": _activation("hidden_act", act)})


def _modern_model(values: Mapping[str, Any]) -> BertConfig:
    fields = MODERN_DEFAULTS | {name: value for name, value in values.items() if value is not None}
    if values.get("local_rope_theta", 0) is None:  # as in `transformers`
        fields["local_rope_theta"] = fields["global_rope_theta"]
    fields |= _rope_thetas(fields)
    if "layer_types" in fields:
        fields["global_attn_every_n_layers"] = _global_every(fields["layer_types"])
    model = {ours: fields[name] for ours, name in MODERN_NAMES.items() if name in fields}
    act = fields.get("hidden_activation", "gelu")
    model["hidden_act"] = _activation("hidden_activation", act)
    if fields.get("classifier_activation", "gelu") != act:
        raise ValueError(
            f"classifier_activation is {fields.get('classifier_activation', 'gelu')!r}; it must be "
            f"hidden_activation, {act!r}."
        )
    return BertConfig(**MODERN_BERT | model)


def _rope_thetas(values: Mapping[str, Any]) -> dict[str, Any]:
    """The bases as transformers 5 writes them, by kind of layer."""
    thetas = {}
    rope = _object(values, "rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    for name, kind in zip(MODERN_THETAS, kinds, strict=True):
        parameters = _object(rope, kind)
        if parameters.get("rope_type", parameters.get("type", "default")) != "default":
            raise ValueError(f"rope_parameters of {kind} are {parameters}; only default is known.")
        if "rope_theta" in parameters:
            thetas[name] = parameters["rope_theta"]
    return thetas


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    rope = values.get(name) or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{name} is {rope!r:.80}, not an object.")
    return rope


def _global_every(layer_types: Any) -> int:
    """n where layers 0, n, 2n ... are global; transformers 5 lists the kind of each layer."""
    if isinstance(layer_types, list) and layer_types[:1] == ["full_attention"]:
        count = len(layer_types)
        others = (i for i in range(1, count) if layer_types[i] == "full_attention")
        every = next(others, count)
        kinds = ["sliding_attention" if i % every else "full_attention" for i in range(count)]
        if kinds == layer_types:
            return every
    raise ValueError(
        f"layer_types are {layer_types!r:.80}; layers 0, n, 2n ... must be the global ones."
    )


def _activation(name: str, act: Any) -> str:
    if act not in ACTIVATIONS:
        raise ValueError(f"{name} is {act!r}; supported: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[act]


def _architecture(path: Path, values: Mapping[str, Any]) -> tuple[str, str | None]:
    kind, named = values.get("model_type", "bert"), values.get("architectures") or None
    first = named[0] if isinstance(named, list) else named
    prefix = {"bert": "Bert", "modernbert": "ModernBert"}.get(str(kind))
    known = [name for name in ARCHITECTURES if prefix and name.startswith(prefix)]
    if not known or str(first) not in ("None", *known):
        description = f"model_type {kind!r}" + (f", architecture {first!r}" if first else "")
        raise ValueError(
            f"{path} describes another model ({description}); supported are model_type 'bert' and "
            f"'modernbert' with {', '.join(ARCHITECTURES)}."
        )
    return str(kind), first


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
    labels = tuple(str(names[str(i)]) for i in range(len(names)))
    if twice := [label for label, count in Counter(labels).items() if count > 1]:
        raise ValueError(f"{path}: id2label has {twice[0]!r} more than once; rename one.")
    return labels
