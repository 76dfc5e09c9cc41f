"""How well a vocabulary fits a text: few tokens a word, many bytes a token, nothing unknown.

quality_of(tokenizer, ["The cats sat."])  ->  1.67 tokens a word, 2.6 bytes a token, 0.00% unknown
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.token_texts import LONE_BYTE
from clozeline.pipeline.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Quality:
    """Counts on a text; words are what whitespace separates."""

    tokens: int
    words: int
    bytes: int  #: UTF-8, without whitespace
    unknown: int  #: tokens that are [UNK]
    single: int  #: tokens of one letter, or of one byte of it

    def __str__(self) -> str:
        return (
            f"{self.tokens / max(self.words, 1):.2f} tokens a word, "
            f"{self.bytes / max(self.tokens, 1):.2f} bytes a token, "
            f"{self.unknown / max(self.tokens, 1):.2%} unknown, "
            f"{self.single / max(self.tokens, 1):.1%} single letters or bytes"
        )


def quality_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Quality:
    """Encode the lines of the texts and count."""
    lines = [line for text in texts for line in text.split("\n")]
    ids, _ = SentenceEncoder(tokenizer).encode([tokenizer.after_space(line) for line in lines])
    counts = np.bincount(ids, minlength=tokenizer.vocab_size)
    words = [word for line in lines for word in line.split()]
    is_single = [_is_single(text.removeprefix(" ")) for text in tokenizer.texts]
    return Quality(
        tokens=len(ids),
        words=len(words),
        bytes=sum(len(word.encode()) for word in words),
        unknown=int(counts[tokenizer.unk_id]),
        single=int(counts[np.array(is_single)].sum()),
    )


def _is_single(text: str) -> bool:
    """Whether the text of a token is a letter, or a byte of one."""
    return len(text) == 1 and (text.isalpha() or LONE_BYTE.match(text) is not None)
