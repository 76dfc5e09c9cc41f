"""Hugging Face folders: a model with its tokenizer.

Some folders pad the embeddings to a round number of rows, for which the tokenizer has no ids; those
rows are dropped. Whatever is wrong with a folder is raised as a one-line InputError.
"""

from dataclasses import replace
from pathlib import Path

from clozeline.model.config import BertConfig
from clozeline.model.huggingface.config import read_huggingface_config
from clozeline.model.huggingface.convert import HuggingFaceModel, load_huggingface
from clozeline.pipeline.common.checksums import check_sums
from clozeline.pipeline.common.errors import InputError, as_input_error
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.artifacts.checkpoint import check_finite
from clozeline.train.artifacts.huggingface_tokenizer import read_tokenizer, read_tokenizer_config
from clozeline.train.artifacts.model_links import check_links

PARTS = {"pooler": "pooler", "mlm_head": "masked-LM head", "nsp_head": "next-sentence head"}


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
