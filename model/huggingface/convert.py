"""Converts between the models of `heads.py` and Hugging Face folders of `transformers`' BERT.

    config.json           sizes, and the class of the model ("architectures")
    model.safetensors     the weights; for other files see `weight_files.py`

    here                                     Hugging Face
    encoder.embeddings.norm.weight           bert.embeddings.LayerNorm.weight
    encoder.layers.0.attention.qkv.weight    bert.encoder.layer.0.attention.self.query.weight, and
                                             ...key.weight, ...value.weight
    mlm_head.bias                            cls.predictions.bias

Here the word embeddings have padding rows, in Hugging Face folders not. A folder may have less than
pretraining needs (no pooler, no heads): absent parts are reported and never initialized here.
Errors are ValueErrors of one line.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from model.config import BertConfig
from model.heads import BertForClassification, BertForPretraining
from model.huggingface.config import (
    ARCHITECTURES,
    BARE,
    CONFIG,
    PRETRAINING,
    HuggingFaceConfig,
    huggingface_config,
    read_huggingface_config,
)
from model.huggingface.weight_files import SAFETENSORS, read_weights

LAYER_NAMES = {  # here -> Hugging Face, inside a layer
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
OTHER_NAMES = {  # and outside the layers
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
}
WORD_EMBEDDINGS = "encoder.embeddings.word_embeddings.weight"
PER_TOKEN = (WORD_EMBEDDINGS, "mlm_head.bias")  # weights with a row for each token
SHOWN = 3  # names in a message

#: The Hugging Face names that each weight is read from, and the shape of each of them.
Sources = dict[str, tuple[list[str], list[int]]]


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """The weights of a folder under the names of `BertForPretraining` or `BertForClassification`.

    They are float32 and complete except for the parts in `absent`: some of "pooler", "mlm_head" and
    "nsp_head".
    """

    config: HuggingFaceConfig
    weights: dict[str, Tensor]
    absent: tuple[str, ...]


def load_huggingface(folder: Path, *, vocab_size: int | None = None) -> HuggingFaceModel:
    """The model of a folder, on the CPU; only the first `vocab_size` tokens if that is given.

    Raises ValueError for what `read_huggingface_config` refuses, for a missing or damaged file, and
    for weights that are missing, unexpected, or of another shape than the config says.
    """
    config = read_huggingface_config(folder)
    found, sources = read_weights(folder), _sources(config)
    absent = _absent_parts(config, found, sources)
    sources = {name: source for name, source in sources.items() if part_of(name) not in absent}
    _check_names(folder, config, found, sources)
    _check_shapes(folder, found, sources)
    tokens = min(config.model.vocab_size, vocab_size or config.model.vocab_size)
    model = replace(config.model, vocab_size=tokens)
    weights = {}
    for name, (names, _) in sources.items():
        weight = torch.cat([found[huggingface_name].float() for huggingface_name in names])
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
    architecture: str = PRETRAINING,
    labels: tuple[str, ...] = (),
    pad_id: int = 0,
) -> None:
    """Write config.json and model.safetensors into an existing folder.

    `weights` are those of a `BertForPretraining`, or of a `BertForClassification` with its class
    names in `labels`; parts that the architecture does not have are left out. Raises ValueError
    where `transformers` cannot express the config.
    """
    values = huggingface_config(config, architecture=architecture, labels=labels, pad_id=pad_id)
    parts = {"encoder", *ARCHITECTURES[architecture], *(["pooler"] if architecture == BARE else [])}
    tensors = {}
    for name, weight in weights.items():
        if part_of(name) not in parts:
            continue
        weight = weight[: config.vocab_size] if name in PER_TOKEN else weight
        names = huggingface_names(name)
        for huggingface_name, part in zip(names, weight.detach().chunk(len(names)), strict=True):
            if architecture == BARE:
                huggingface_name = huggingface_name.removeprefix("bert.")
            tensors[huggingface_name] = part.to("cpu", torch.float32, copy=True).contiguous()
    (folder / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", "utf-8")
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
    # safetensors makes the file readable by its owner alone, but exports are made to be shared.
    (folder / SAFETENSORS).chmod((folder / CONFIG).stat().st_mode)


def huggingface_names(name: str) -> list[str]:
    """The names of a weight in `transformers`: three for packed queries, keys and values."""
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", module)
    if layer is None:
        return [f"{OTHER_NAMES[module]}.{kind}"]
    return [f"bert.encoder.layer.{layer[1]}.{inner}.{kind}" for inner in LAYER_NAMES[layer[2]]]


def part_of(name: str) -> str:
    """The part of a weight: encoder, pooler, mlm_head, nsp_head or classifier."""
    return "pooler" if name.startswith("encoder.pooler.") else name.partition(".")[0]


def _sources(config: HuggingFaceConfig) -> Sources:
    with torch.device("meta"):  # shapes without memory
        weights = BertForPretraining(config.model).state_dict()
        if config.labels:
            weights |= BertForClassification(config.model, len(config.labels)).state_dict()
    sources = {}
    for name, weight in weights.items():
        names = huggingface_names(name)
        rows = config.model.vocab_size if name in PER_TOKEN else len(weight) // len(names)
        sources[name] = names, [rows, *weight.shape[1:]]
    return sources


def _absent_parts(
    config: HuggingFaceConfig, found: Mapping[str, Tensor], sources: Sources
) -> tuple[str, ...]:
    """Parts without any weight in the folder that the architecture does not require."""
    present = {part_of(name): False for name in sources}
    for name, (names, _) in sources.items():
        present[part_of(name)] |= any(huggingface_name in found for huggingface_name in names)
    required = ("encoder", *ARCHITECTURES.get(config.architecture or BARE, ()))
    absent = [part for part, is_present in present.items() if not is_present]
    return tuple(part for part in absent if part not in required)


def _check_names(
    folder: Path, config: HuggingFaceConfig, found: Mapping[str, Tensor], sources: Sources
) -> None:
    wanted = [name for names, _ in sources.values() for name in names]
    missing = [name for name in wanted if name not in found]
    unexpected = sorted(set(found) - set(wanted))
    if missing or unexpected:
        findings = (("missing", missing), ("unexpected", unexpected))
        listed = "; ".join(f"{kind}: {_shown(names)}" for kind, names in findings if names)
        raise ValueError(
            f"{folder}: the weights are not those of the {config.architecture or 'BERT'} in its "
            f"{CONFIG}; {listed}."
        )


def _check_shapes(folder: Path, found: Mapping[str, Tensor], sources: Sources) -> None:
    for names, shape in sources.values():
        for name in names:
            if list(found[name].shape) != shape:
                raise ValueError(
                    f"{folder}: {name} has the shape {list(found[name].shape)}, but {CONFIG} says "
                    f"{shape}; one of the files belongs to another model."
                )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
