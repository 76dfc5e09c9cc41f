"""Hugging Face folders as the commands meet them: a model with its tokenizer.

Some folders have rows for words that no id of the tokenizer stands for, to make a round number of
them; they are left out here. What is wrong with a folder is one line for the user.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from model.config import BertConfig
from model.huggingface.config import CONFIG, read_huggingface_config
from model.huggingface.convert import HuggingFaceModel, load_huggingface
from model.huggingface.weight_files import has_weights
from pipeline.common.errors import InputError
from pipeline.tokenization.tokenizer import Tokenizer
from train.artifacts.huggingface_tokenizer import read_tokenizer, read_tokenizer_config

PARTS = {
    "pooler": "pooler",
    "mlm_head": "masked-word head",
    "nsp_head": "next-sentence head",
}


def is_hugging_face(folder: Path) -> bool:
    """Whether there is something in the folder that is, or could be converted to, such a model."""
    return (folder / CONFIG).exists() or has_weights(folder)


def read_model_config(folder: Path) -> BertConfig:
    """The model of a folder, without its weights. Raises InputError as `load_model` does."""
    with _as_input_error():
        config = read_huggingface_config(folder).model
        return _with_words_of(read_tokenizer(folder), config, folder)


def load_model(folder: Path) -> tuple[HuggingFaceModel, Tokenizer]:
    """The model of a folder and its tokenizer.

    Raises InputError for what is not plain BERT, for files that are missing, damaged or do not
    belong together.
    """
    with _as_input_error():
        config, tokenizer = read_huggingface_config(folder).model, read_tokenizer(folder)
        words = _with_words_of(tokenizer, config, folder).vocab_size
        return load_huggingface(folder, vocab_size=words), tokenizer


def longest_text(folder: Path, config: BertConfig) -> int:
    """Tokens of a text at most: what the tokenizer says, or all that the model has places for."""
    said = read_tokenizer_config(folder).get("model_max_length")
    places = config.max_position_embeddings
    return int(min(said, places)) if isinstance(said, int | float) and said > 2 else places


def _with_words_of(tokenizer: Tokenizer, config: BertConfig, folder: Path) -> BertConfig:
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size:,} pieces, and its model "
            f"{config.vocab_size:,} words; one of them belongs to another model."
        )
    if config.type_vocab_size < 2:
        raise InputError(f"{folder}: type_vocab_size is 1, so its model cannot read pairs of text.")
    return replace(config, vocab_size=tokenizer.vocab_size)


@contextmanager
def _as_input_error() -> Iterator[None]:
    """What `model` says is wrong with a folder is for the user to mend."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
