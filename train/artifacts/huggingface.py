"""Hugging Face folders: a model with its tokenizer.

    config.json, model.safetensors    see model/huggingface/
    tokenizer.json, or vocab.txt      the vocabulary
    tokenizer_config.json             lower case, accents, Chinese; maximum length of a text, and
                                      where a longer one is cut

The normalization is what `transformers` makes of the files: for its BERT tokenizers the flags of
tokenizer_config.json, with defaults for missing ones; for others those of tokenizer.json. Some
folders pad the embeddings to a round number of rows, for which the tokenizer has no ids; those rows
are dropped. Whatever is wrong with a folder is raised as a one-line InputError.
"""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig
from clozeline.model.huggingface.config import read_huggingface_config
from clozeline.model.huggingface.convert import HuggingFaceModel, load_huggingface
from clozeline.model.huggingface.weight_files import read_json
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError, as_input_error
from clozeline.pipeline.common.json_files import check_sums
from clozeline.pipeline.tokenization.read_vocabulary import (
    flags_of,
    read_tokenizer_json,
    read_vocab_txt,
)
from clozeline.pipeline.tokenization.tokenizer import (
    ANY_TOKENIZER,
    TOKENIZER_JSON,
    VOCAB_TXT,
    Tokenizer,
    named_tokenizer,
)
from clozeline.pipeline.tokenization.vocabulary import TOKENIZER_CONFIG, Normalization
from clozeline.train.artifacts.checkpoint import check_finite
from clozeline.train.config import Truncate

PARTS = {"pooler": "pooler", "mlm_head": "masked-LM head", "nsp_head": "next-sentence head"}
BERT_TOKENIZERS = (None, "BertTokenizer", "BertTokenizerFast")
FILE_TOKENIZERS = (ANY_TOKENIZER, "TokenizersBackend")  # all is in tokenizer.json


def read_model_config(folder: Path) -> BertConfig:
    """The model config of a folder. Raises InputError as `load_model` does."""
    with as_input_error():
        config = read_huggingface_config(folder).model
        return _with_vocabulary_of(read_tokenizer(folder), config, folder)


def load_model(folder: Path) -> tuple[HuggingFaceModel, Tokenizer]:
    """The model of a folder and its tokenizer.

    Raises InputError if it is neither BERT nor ModernBERT, and for files that are missing, damaged
    or do not belong together.
    """
    check_links(folder)
    check_sums(folder)
    with as_input_error():
        config, tokenizer = read_huggingface_config(folder).model, read_tokenizer(folder)
        vocab_size = _with_vocabulary_of(tokenizer, config, folder).vocab_size
        stored = load_huggingface(folder, vocab_size=vocab_size)
    check_finite(folder, stored.weights)
    return stored, tokenizer


def longest_text(folder: Path, config: BertConfig) -> int:
    """Maximum tokens of a text: the tokenizer's limit, or the number of the model's positions."""
    limit = read_tokenizer_config(folder).get("model_max_length")
    positions = config.max_position_embeddings
    return int(min(limit, positions)) if isinstance(limit, int | float) and limit > 2 else positions


def _with_vocabulary_of(tokenizer: Tokenizer, config: BertConfig, folder: Path) -> BertConfig:
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} tokens, the model's vocabulary "
            f"{config.vocab_size:,}; one of them belongs to another model."
        )
    if config.type_vocab_size == 1:
        raise InputError(f"{folder}: type_vocab_size is 1; the model cannot read pairs of texts.")
    return replace(config, vocab_size=tokenizer.vocab_size)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, without Punkt. Raises InputError for another kind."""
    config = read_tokenizer_config(folder)
    kind, words_first = config.get("tokenizer_class"), config.get("do_basic_tokenize", True)
    if kind not in (*BERT_TOKENIZERS, *FILE_TOKENIZERS) or not words_first:
        raise InputError(
            f"{folder / TOKENIZER_CONFIG}: tokenizer_class is {kind!r} and do_basic_tokenize "
            f"{words_first!r}; only BertTokenizer, which splits words first, is supported."
        )
    flags = flags_of(config, folder / TOKENIZER_CONFIG)
    if (folder / TOKENIZER_JSON).is_file():
        tokens, normalization = read_tokenizer_json(folder / TOKENIZER_JSON)
        if config and kind in BERT_TOKENIZERS and isinstance(normalization, Normalization):
            normalization = flags
    elif (folder / VOCAB_TXT).is_file():
        tokens, normalization = read_vocab_txt(folder / VOCAB_TXT), flags
    else:
        raise InputError(
            f"{folder} has no tokenizer (no {TOKENIZER_JSON} or {VOCAB_TXT}); add the one that the "
            "model was trained with."
        )
    return named_tokenizer(folder, tokens, normalization, None)


def vocabulary_differences(theirs: Tokenizer, ours: Tokenizer) -> list[str]:
    """What makes two tokenizers give different ids: "lowercase True there, False now"."""
    values = [
        {**_settings(tokenizer), "vocab_size": tokenizer.vocab_size} for tokenizer in (theirs, ours)
    ]
    pairs = enumerate(zip(theirs.tokens, ours.tokens, strict=False))
    other = [differences({f"id {i}": a}, {f"id {i}": b})[0] for i, (a, b) in pairs if a != b]
    more = f", and {len(other) - 1:,} other ids" if other[1:] else ""
    return differences(*values) + [first + more for first in other[:1]]


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, or {}. Raises InputError where it is damaged."""
    path = folder / TOKENIZER_CONFIG
    with as_input_error():
        return read_json(path) if path.exists() else {}


def side_cut(folder: Path) -> Truncate:
    """What its tokenizer cuts from a text that is too long, as `transformers` finds it.

    Raises InputError where a file is damaged.
    """
    path = folder / TOKENIZER_JSON
    with as_input_error():
        truncation = read_json(path).get("truncation") if path.exists() else None
    side = truncation.get("direction") if isinstance(truncation, dict) else None
    side = read_tokenizer_config(folder).get("truncation_side", side)
    return "start" if side in ("left", "Left") else "end"


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    if isinstance(tokenizer.normalization, Normalization):
        return asdict(tokenizer.normalization)
    return {TOKENIZER_JSON: hashlib.sha256(tokenizer.normalization.text.encode()).hexdigest()[:12]}


def check_links(folder: Path) -> None:
    """Raises InputError for a file that is a link to somewhere outside of the folder.

    The hub's cache keeps its files beside the folder: snapshots/5f2c/vocab.txt -> ../../blobs/ab12
    """
    root = folder.resolve()
    if root.parent.name == "snapshots":
        root = root.parent.parent
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise InputError(
                f"{path} is a link to {path.resolve()}, outside of the model's folder; copy the "
                "file there if that is what you want."
            )
