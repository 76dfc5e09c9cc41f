"""Pretraining that begins with somebody else's weights: the Hugging Face folder of `--init`."""

import sys
from dataclasses import replace
from pathlib import Path

from model.config import BertConfig, preset
from model.heads import BertForPretraining
from model.huggingface.weight_files import weights_sha256
from pipeline.common.differences import differences
from pipeline.common.errors import InputError
from pipeline.dataset.manifest import TOKENIZER
from pipeline.tokenization.tokenizer import TOKENIZER_JSON, VOCAB_TXT, load_tokenizer
from train.artifacts.huggingface import PARTS, load_model, read_model_config
from train.artifacts.huggingface_tokenizer import vocabulary_differences
from train.artifacts.pretrained import kind_of
from train.artifacts.run import with_dropout

# What a preset may have otherwise than a folder: it follows from data, or is no part of the model.
FREE = (
    "vocab_size",
    "max_position_embeddings",
    "initializer_range",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)


def initial_config(init: Path, *, preset_name: str | None, dropout: float | None) -> BertConfig:
    """The model of the folder, with another dropout if one is given.

    Raises InputError for a folder of another kind, and where a preset is named that differs.
    """
    kind = kind_of(init)
    if kind == "run":
        raise InputError(f"{init} is a run; begin with it by --start-from {init}.")
    if kind == "classifier":
        raise InputError(f"{init} is a classifier; give the folder `clozeline export` makes of it.")
    there = read_model_config(init)
    try:
        if preset_name is not None:
            _check_preset(init, there, preset_name)
        return with_dropout(there, dropout)
    except ValueError as error:
        raise InputError(str(error)) from error


def check_initial(init: Path, model: BertConfig, shards: Path) -> str:
    """The sha256 of the weights of the folder, if they fit; what it lacks is said at once.

    Raises InputError where it holds another model, or the shards have ids of another tokenizer.
    """
    found, tokenizer = load_model(init)
    if differs := _differences(_with_dropouts_of(model, found.config.model), model):
        raise InputError(
            f"{init} has another model ({differs}), so its weights do not fit; take the model from "
            "the folder."
        )
    if differs := "; ".join(vocabulary_differences(tokenizer, load_tokenizer(shards / TOKENIZER))):
        names = (name for name in (VOCAB_TXT, TOKENIZER_JSON) if (init / name).exists())
        raise InputError(
            f"{init} has another tokenizer than {shards} ({differs}); make the shards with one of "
            f"`clozeline tokenizer --vocab {init / next(names)} --out DIR"
            f"{'' if tokenizer.lowercase else ' --cased'}`."
        )
    if absent := [PARTS[part] for part in PARTS if part in found.absent]:
        print(
            f"note: {init} has no {' and no '.join(absent)}; drawn from the seed.", file=sys.stderr
        )
    return weights_sha256(init)


def load_initial(model: BertForPretraining, init: Path) -> None:
    """Put the weights of the folder in; a part that it lacks stays as it was drawn."""
    ours, found = model.state_dict(), load_model(init)[0].weights
    model.load_state_dict(ours | {name: found[name] for name in ours if name in found})


def _check_preset(init: Path, there: BertConfig, name: str) -> None:
    theirs = there.to_dict()
    asked = replace(preset(name), **{field: theirs[field] for field in FREE})
    if differs := _differences(there, asked):
        raise InputError(
            f"{init} is no {name} ({differs}); leave --preset out, and the model is the folder's."
        )


def _differences(there: BertConfig, now: BertConfig) -> str:
    return "; ".join(differences(there.to_dict(), now.to_dict()))


def _with_dropouts_of(model: BertConfig, there: BertConfig) -> BertConfig:
    """They are no part of the weights."""
    return replace(
        there,
        hidden_dropout_prob=model.hidden_dropout_prob,
        attention_probs_dropout_prob=model.attention_probs_dropout_prob,
    )
