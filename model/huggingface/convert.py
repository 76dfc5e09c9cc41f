"""Converts between the models of `heads.py` and Hugging Face folders of BERT and ModernBERT.

    config.json           sizes, and the class of the model ("architectures")
    model.safetensors     the weights, named as in FAMILIES; for other files see `weight_files.py`

    encoder.layers.0.attention.qkv.weight    BERT: bert.encoder.layer.0.attention.self.query.weight,
                                             and key, value; ModernBERT: model.layers.0.attn.Wqkv...

Here the word embeddings have padding rows; in Hugging Face folders they do not. A folder may lack
what pretraining needs (no pooler, no heads): absent parts are reported and never initialized here.
Errors are ValueErrors of one line.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from clozeline.model.config import BertConfig, Pooling
from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.model.huggingface.config import (
    ARCHITECTURES,
    CONFIG,
    HuggingFaceConfig,
    architecture_of,
    huggingface_config,
    model_type_of,
    read_huggingface_config,
)
from clozeline.model.huggingface.weight_files import SAFETENSORS, read_weights

WORD_EMBEDDINGS = "encoder.embeddings.word_embeddings.weight"
PER_TOKEN = (WORD_EMBEDDINGS, "mlm_head.bias")  # weights with a row for each token
NAMES_SHOWN = 3  # names in a message

#: The Hugging Face names that each weight is read from, and the shape of each of them.
Sources = dict[str, tuple[list[str], list[int]]]


@dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The names of one family."""

    prefix: str  # of the encoder; a bare encoder is stored without it
    layer: str  # the layers without their number
    in_layer: Mapping[str, tuple[str, ...]]  # module here -> there, several for packed matrices
    outside: Mapping[str, str]  # module here -> there

    def of(self, name: str) -> list[str]:
        """The names of a weight: three for packed queries, keys and values, none if absent."""
        module, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", module)
        if layer is not None:
            return [f"{self.layer}.{layer[1]}.{inner}.{kind}" for inner in self.in_layer[layer[2]]]
        return [f"{self.outside[module]}.{kind}"] if module in self.outside else []


BERT = WeightNames(
    prefix="bert.",
    layer="bert.encoder.layer",
    in_layer={
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "feed_forward.up": ("intermediate.dense",),
        "feed_forward.down": ("output.dense",),
        "feed_forward_norm": ("output.LayerNorm",),
    },
    outside={
        "encoder.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
        "encoder.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
        "encoder.embeddings.token_type_embeddings": "bert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
        "encoder.pooler": "bert.pooler.dense",
        "mlm_head": "cls.predictions",
        "mlm_head.transform.dense": "cls.predictions.transform.dense",
        "mlm_head.transform.norm": "cls.predictions.transform.LayerNorm",
        "nsp_head": "cls.seq_relationship",
        "classifier": "classifier",
    },
)
MODERN_BERT = WeightNames(
    prefix="model.",
    layer="model.layers",
    in_layer={
        "attention.qkv": ("attn.Wqkv",),
        "attention.output": ("attn.Wo",),
        "attention_norm": ("attn_norm",),
        "feed_forward.up": ("mlp.Wi",),
        "feed_forward.down": ("mlp.Wo",),
        "feed_forward_norm": ("mlp_norm",),
    },
    outside={
        "encoder.embeddings.word_embeddings": "model.embeddings.tok_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.final_norm": "model.final_norm",
        "mlm_head": "decoder",
        "mlm_head.transform.dense": "head.dense",
        "mlm_head.transform.norm": "head.norm",
        "transform.dense": "head.dense",
        "transform.norm": "head.norm",
        "classifier": "classifier",
    },
)
FAMILIES = {"bert": BERT, "modernbert": MODERN_BERT}  # by model_type in config.json


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """The weights of a folder under the names of `BertForPretraining` or `BertForClassification`.

    They are float32 and complete except for the parts in `absent`: some of "pooler", "mlm_head" and
    "nsp_head". ModernBERT has no "nsp_head".
    """

    config: HuggingFaceConfig
    weights: dict[str, Tensor]
    absent: tuple[str, ...]


class SavedModel(NamedTuple):
    """What `save_huggingface` wrote."""

    architecture: str
    parameters: int
    left_out: tuple[str, ...]  # parts of the weights that the architecture does not have


def load_huggingface(folder: Path, *, vocab_size: int | None = None) -> HuggingFaceModel:
    """The model of a folder, on the CPU; only the first `vocab_size` tokens if that is given.

    Raises ValueError for what `read_huggingface_config` refuses, for a missing or damaged file, and
    for weights that are missing, unexpected, or of another shape than the config says.
    """
    config = read_huggingface_config(folder)
    tensors, sources = read_weights(folder), _sources(config)
    absent = _absent_parts(config, tensors, sources)
    sources = {name: source for name, source in sources.items() if part_of(name) not in absent}
    _check_names(folder, config, tensors, sources)
    _check_shapes(folder, tensors, sources)
    tokens = min(config.model.vocab_size, vocab_size or config.model.vocab_size)
    model = replace(config.model, vocab_size=tokens)
    weights = {}
    for name, (names, _) in sources.items():
        weight = torch.cat([tensors[huggingface_name].float() for huggingface_name in names])
        if name in PER_TOKEN:
            weight = weight[:tokens]
        if name == WORD_EMBEDDINGS:
            weight = F.pad(weight, (0, 0, 0, model.padded_vocab_size - tokens))
        weights[name] = weight
    return HuggingFaceModel(config=replace(config, model=model), weights=weights, absent=absent)


def save_huggingface(
    folder: Path,
    config: BertConfig,
    weights: Mapping[str, Tensor],
    *,
    architecture: str | None = None,
    labels: tuple[str, ...] = (),
    pooling: Pooling = "cls",
    pad_id: int = 0,
) -> SavedModel:
    """Write config.json and model.safetensors into an existing folder.

    `weights` are those of a `BertForPretraining`, or of a `BertForClassification` with its class
    names in `labels`; parts that the architecture does not have are left out. Raises ValueError
    where `transformers` cannot express the config.
    """
    architecture = architecture or architecture_of(config, is_classifier=bool(labels))
    values = huggingface_config(config, architecture=architecture, pooling=pooling, pad_id=pad_id)
    family, is_bare = FAMILIES[model_type_of(config)], not ARCHITECTURES[architecture]
    parts = {"encoder", *ARCHITECTURES[architecture], *(["pooler"] if is_bare else [])}
    tensors = {}
    for name, weight in weights.items():
        if part_of(name) not in parts:
            continue
        weight = weight[: config.vocab_size] if name in PER_TOKEN else weight
        names = family.of(name)
        for huggingface_name, part in zip(names, weight.chunk(len(names)), strict=True):
            if is_bare:
                huggingface_name = huggingface_name.removeprefix(family.prefix)
            tensors[huggingface_name] = part
    absent = {part_of(name) for name in weights} - parts
    parameters = write_model(folder, values, tensors, labels=labels)
    return SavedModel(architecture, parameters, tuple(sorted(absent)))


def write_model(
    folder: Path, values: dict[str, Any], tensors: Mapping[str, Tensor], *, labels: Sequence[str]
) -> int:
    """Write the values, with class names, as config.json, and the weights; returns their number."""
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    whole = {
        name: x.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, x in tensors.items()
    }
    (folder / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", "utf-8")
    save_file(whole, folder / SAFETENSORS, metadata={"format": "pt"})
    # safetensors makes the file readable by its owner alone, but exports are made to be shared.
    (folder / SAFETENSORS).chmod((folder / CONFIG).stat().st_mode)
    return sum(x.numel() for x in whole.values())


def part_of(name: str) -> str:
    """The part of a weight: encoder, pooler, mlm_head, nsp_head, transform or classifier."""
    return "pooler" if name.startswith("encoder.pooler.") else name.partition(".")[0]


def _sources(config: HuggingFaceConfig) -> Sources:
    family = FAMILIES[config.model_type]
    with torch.device("meta"):  # shapes without memory
        weights = BertForPretraining(config.model).state_dict()
        if config.labels:
            weights |= BertForClassification(config.model, len(config.labels)).state_dict()
    if "transform.dense.weight" in weights:  # it has the names of the masked-LM head's
        weights = {name: x for name, x in weights.items() if part_of(name) != "mlm_head"}
    sources = {}
    for name, weight in weights.items():
        if names := family.of(name):
            rows = config.model.vocab_size if name in PER_TOKEN else len(weight) // len(names)
            sources[name] = names, [rows, *weight.shape[1:]]
    return sources


def _absent_parts(
    config: HuggingFaceConfig, tensors: Mapping[str, Tensor], sources: Sources
) -> tuple[str, ...]:
    """Parts without any weight in the folder that the architecture does not require."""
    parts = dict.fromkeys([*map(part_of, sources), "mlm_head", "nsp_head"])
    present = {
        part_of(name)
        for name, (names, _) in sources.items()
        if not tensors.keys().isdisjoint(names)
    }
    required = {"encoder", *ARCHITECTURES.get(config.architecture or "", ())}
    return tuple(part for part in parts if part not in present | required)


def _check_names(
    folder: Path, config: HuggingFaceConfig, tensors: Mapping[str, Tensor], sources: Sources
) -> None:
    wanted = [name for names, _ in sources.values() for name in names]
    missing = [name for name in wanted if name not in tensors]
    unexpected = sorted(set(tensors) - set(wanted))
    if missing or unexpected:
        findings = (("missing", missing), ("unexpected", unexpected))
        listed = "; ".join(f"{kind}: {_first_names(names)}" for kind, names in findings if names)
        raise ValueError(
            f"{folder}: the weights are not those of the {config.architecture or 'BERT'} in its "
            f"{CONFIG}; {listed}."
        )


def _check_shapes(folder: Path, tensors: Mapping[str, Tensor], sources: Sources) -> None:
    for names, shape in sources.values():
        for name in names:
            stored = list(tensors[name].shape)
            if stored != shape:
                raise ValueError(
                    f"{folder}: {name} has the shape {stored}, but {CONFIG} says {shape}; one of "
                    "the files belongs to another model."
                )


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
