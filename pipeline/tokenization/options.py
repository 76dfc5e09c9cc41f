"""The options of `clozeline tokenizer`; what they decide is in the tokenizer's digest."""

from dataclasses import dataclass
from typing import Literal

from clozeline.pipeline.common.paths import AnyPath

Model = Literal["wordpiece", "bpe", "unigram"]


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """How a vocabulary and a sentence splitter are learned or adopted.

    Raises ValueError for options that do not go together.
    """

    vocab: AnyPath | None = None  #: a vocab.txt, tokenizer.json or folder to adopt
    vocab_size: int | None = None  #: of a vocabulary to learn
    model: Model = "wordpiece"  #: of a vocabulary to learn
    cased: bool = False
    strip_accents: bool | None = None  #: None: as the text needs it
    language: str = "english"  #: of the sentence splitter
    text_columns: tuple[str, ...] = ("text",)
    max_megabytes: int = 200  #: of text to learn from
    allow_truncated: bool = False

    def __post_init__(self) -> None:
        if (self.vocab is None) == (self.vocab_size is None):
            raise ValueError("give one of --vocab FILE and --vocab-size N.")
        if self.model == "wordpiece":
            return
        if self.vocab is not None:
            raise ValueError("--model is that of a vocabulary to learn; leave it out with --vocab.")
        if self.strip_accents is not None:
            raise ValueError(
                f"--model {self.model} keeps accents; drop --strip-accents and --no-strip-accents."
            )
