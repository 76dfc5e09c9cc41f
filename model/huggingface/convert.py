"""Hugging Face folders: the BERT of `transformers`, to and from the models of `heads.py`.

    config.json           sizes, and what the weights are of ("architectures")
    model.safetensors     the weights; for older and larger ones see `weight_files.py`

    ours                                     theirs
    encoder.embeddings.norm.weight           bert.embeddings.LayerNorm.weight
    encoder.layers.0.attention.qkv.weight    bert.encoder.layer.0.attention.self.query.weight, and
                                             ...key.weight, ...value.weight
    mlm_head.bias                            cls.predictions.bias

Our table of words has rows that round their number up, and theirs has not. A folder may hold less
than pretraining needs (no pooler, no heads): what is absent is told, and never made up here. What
goes wrong is a ValueError of one line.
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

LAYER = {  # ours -> theirs, inside a layer
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
AROUND = {  # and everywhere else
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
WORDS = "encoder.embeddings.word_embeddings.weight"
PER_WORD = (WORDS, "mlm_head.bias")
SHOWN = 3  # names in a message

Places = dict[str, tuple[list[str], list[int]]]


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """The weights of a folder under the names of `BertForPretraining` or `BertForClassification`.

    They are float32 and complete, but for the parts in `absent`: some of "pooler", "mlm_head" and
    "nsp_head".
    """

    config: HuggingFaceConfig
    weights: dict[str, Tensor]
    absent: tuple[str, ...]


def load_huggingface(folder: Path, *, vocab_size: int | None = None) -> HuggingFaceModel:
    """The model of a folder, on the CPU. `vocab_size`: without the words from there on.

    Raises ValueError for what `read_huggingface_config` refuses, for a file that is missing or
    damaged, and for weights that are missing, left over, or of another shape than the config says.
    """
    config = read_huggingface_config(folder)
    theirs, places = read_weights(folder), _places(config)
    absent = _absent_parts(config, theirs, places)
    places = {name: place for name, place in places.items() if part_of(name) not in absent}
    _check_names(folder, config, theirs, places)
    _check_shapes(folder, theirs, places)
    words = min(config.model.vocab_size, vocab_size or config.model.vocab_size)
    model = replace(config.model, vocab_size=words)
    weights = {}
    for name, (names, _) in places.items():
        weight = torch.cat([theirs[their_name].float() for their_name in names])
        if name in PER_WORD:
            weight = weight[:words]
        if name == WORDS:
            weight = F.pad(weight, (0, 0, 0, model.padded_vocab_size - words))
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
    """Write config.json and model.safetensors into a folder that is there.

    `weights`: those of a `BertForPretraining`, or of a `BertForClassification` with the names of
    its classes in `labels`; what the architecture has no place for stays behind. Raises ValueError
    where `transformers` cannot express the config.
    """
    facts = huggingface_config(config, architecture=architecture, labels=labels, pad_id=pad_id)
    parts = {"encoder", *ARCHITECTURES[architecture], *(["pooler"] if architecture == BARE else [])}
    theirs = {}
    for name, weight in weights.items():
        if part_of(name) not in parts:
            continue
        weight = weight[: config.vocab_size] if name in PER_WORD else weight
        names = huggingface_names(name)
        for their_name, piece in zip(names, weight.detach().chunk(len(names)), strict=True):
            bare = their_name.removeprefix("bert.") if architecture == BARE else their_name
            theirs[bare] = piece.to("cpu", torch.float32, copy=True).contiguous()
    (folder / CONFIG).write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", "utf-8")
    save_file(theirs, folder / SAFETENSORS, metadata={"format": "pt"})
    # The library lets its owner alone read it, and such a folder is made to be given away.
    (folder / SAFETENSORS).chmod((folder / CONFIG).stat().st_mode)


def huggingface_names(name: str) -> list[str]:
    """What `transformers` calls a weight of ours; of queries, keys and values, three names."""
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", module)
    if layer is None:
        return [f"{AROUND[module]}.{kind}"]
    return [f"bert.encoder.layer.{layer[1]}.{inner}.{kind}" for inner in LAYER[layer[2]]]


def part_of(name: str) -> str:
    """encoder, pooler, mlm_head, nsp_head or classifier: where a weight of ours belongs."""
    return "pooler" if name.startswith("encoder.pooler.") else name.partition(".")[0]


def _places(config: HuggingFaceConfig) -> Places:
    """Of each weight of ours: the names of theirs, and the shape that each of these has."""
    with torch.device("meta"):  # shapes without memory
        ours = BertForPretraining(config.model).state_dict()
        if config.labels:
            ours |= BertForClassification(config.model, len(config.labels)).state_dict()
    places = {}
    for name, weight in ours.items():
        names = huggingface_names(name)
        rows = config.model.vocab_size if name in PER_WORD else len(weight) // len(names)
        places[name] = names, [rows, *weight.shape[1:]]
    return places


def _absent_parts(
    config: HuggingFaceConfig, theirs: Mapping[str, Tensor], places: Places
) -> tuple[str, ...]:
    """Parts of which nothing is there, and which the architecture does not promise."""
    found = {part_of(name): False for name in places}
    for name, (names, _) in places.items():
        found[part_of(name)] |= any(their_name in theirs for their_name in names)
    promised = ("encoder", *ARCHITECTURES.get(config.architecture or BARE, ()))
    return tuple(part for part, is_there in found.items() if not is_there and part not in promised)


def _check_names(
    folder: Path, config: HuggingFaceConfig, theirs: Mapping[str, Tensor], places: Places
) -> None:
    wanted = [their_name for names, _ in places.values() for their_name in names]
    missing = [name for name in wanted if name not in theirs]
    strange = sorted(set(theirs) - set(wanted))
    if missing or strange:
        faults = (("lack", missing), ("hold what it has not:", strange))
        raise ValueError(
            f"{folder}: the weights are not those of a {config.architecture or 'BERT'} of its "
            f"{CONFIG}; they "
            + " and ".join(f"{fault} {_shown(names)}" for fault, names in faults if names)
            + "."
        )


def _check_shapes(folder: Path, theirs: Mapping[str, Tensor], places: Places) -> None:
    for names, shape in places.values():
        for name in names:
            if list(theirs[name].shape) != shape:
                raise ValueError(
                    f"{folder}: {name} has the shape {list(theirs[name].shape)}, and by its "
                    f"{CONFIG} it should have {shape}; one of the files is of another model."
                )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
