"""Reads the tokenizer of a Hugging Face folder.

    tokenizer.json, or vocab.txt      the vocabulary
    tokenizer_config.json             lower case, accents, Chinese; maximum length of a text, and
                                      where a longer one is cut

The normalization is what `transformers` makes of the files: for its BERT tokenizers the flags of
tokenizer_config.json, with defaults for missing ones; for others those of tokenizer.json.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clozeline.model.huggingface.weight_files import read_json
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError, as_input_error
from clozeline.pipeline.tokenization.tokenizer import (
    TOKENIZER_JSON,
    VOCAB_TXT,
    Tokenizer,
    named_tokenizer,
)
from clozeline.pipeline.tokenization.transformers_files import (
    ANY_TOKENIZER,
    TOKENIZER_CONFIG,
)
from clozeline.pipeline.tokenization.vocabulary import (
    Normalization,
    flags_of,
    read_tokenizer_json,
    read_vocab_txt,
)
from clozeline.train.config import Truncate

BERT_TOKENIZERS = (None, "BertTokenizer", "BertTokenizerFast")
FILE_TOKENIZERS = (ANY_TOKENIZER, "TokenizersBackend")  # all is in tokenizer.json


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
