"""The options of `clozeline tokenizer`; what they decide is in the tokenizer's digest."""

from dataclasses import dataclass
from typing import Literal

import click

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import check_choices, checks_keywords
from clozeline.pipeline.common.paths import AnyPath

Model = Literal["wordpiece", "bpe"]


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """How a vocabulary and a sentence splitter are learned or adopted.

    Raises ValueError for options that do not go together.
    """

    vocab: AnyPath | None = option(
        None,
        "Adopt this vocab.txt or tokenizer.json, or the tokenizer of a Hugging Face folder.",
        group="Vocabulary",
    )
    vocab_size: int | None = option(
        None,
        "Learn a vocabulary of this many tokens, from at most 200 MB of text.",
        group="Vocabulary",
        type=click.IntRange(100, 1 << 24),
    )
    model: Model = option(
        "wordpiece",
        "WordPiece, as for BERT, or byte-level BPE, as for ModernBERT; BPE keeps case and accents. "
        "Unigram is only adopted: its trainer gives another vocabulary each time.",
        group="Vocabulary",
    )
    cased: bool | None = option(
        None,
        "Keep upper case.  [default: no, but with --vocab as its tokenizer_config.json says]",
        group="Vocabulary",
        off="uncased",
        show_default=False,
    )
    strip_accents: bool | None = option(
        None,
        "Remove accents.  [default: yes, but not with --cased, nor if the text would lose letters "
        "or words]",
        group="Vocabulary",
        show_default=False,
    )
    language: str = option("english", "Language of the sentence splitter.", group="Text")
    text_columns: tuple[str, ...] = option(
        ("text",), "Column (or JSON key) of the text; repeatable.", group="Text"
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if (self.vocab is None) == (self.vocab_size is None):
            raise ValueError("give one of --vocab FILE and --vocab-size N.")
        if self.model == "wordpiece":
            return
        if self.vocab is not None:
            raise ValueError("--model is for learning a vocabulary; leave it out with --vocab.")
        if self.strip_accents is not None:
            raise ValueError(f"--model {self.model} keeps accents; leave out --[no-]strip-accents.")
