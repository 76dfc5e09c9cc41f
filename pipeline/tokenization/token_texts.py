"""Tokens as text: what each adds to a text, and how a person reads one.

    WordPiece  BPE    Unigram    text        shown
    the        Ġthe   ▁the       " the"      the
    ##s        s      s          "s"         ##s
               Ġ      ▁          " "         ␣
               Ð                 "\\udcd0"   ##<0xD0>    a byte of a character of several tokens

Such a byte is a surrogate (PEP 383) until the tokens of its character are joined.
"""

import re
from collections.abc import Sequence

from clozeline.pipeline.common.errors import escaped
from clozeline.pipeline.tokenization.tokenizer_spec import BYTES, WORD_MARKS, TokenizerSpec
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION

SPACE = "␣"  # how a token of a space alone is shown
LONE_BYTE = re.compile("[\udc80-\udcff]")


def token_texts(
    tokens: Sequence[str], is_continuation: Sequence[bool], spec: TokenizerSpec | None
) -> list[str]:
    """What each token adds to a text, [V]: a space first where it begins a word."""
    mark = spec.word_mark if spec else None
    if spec is None or mark is None:  # tokens are words, or say that they continue one
        return [
            token.removeprefix(CONTINUATION) if continues else f" {token}"
            for token, continues in zip(tokens, is_continuation, strict=True)
        ]
    spell = _from_bytes if mark == WORD_MARKS["ByteLevel"] else _from_metaspace
    special = spec.added(special=True).union(spec.special_tokens)
    added = spec.added(special=False)
    return [
        f" {token}" if token in special else token if token in added else spell(token)
        for token in tokens
    ]


def _from_metaspace(token: str) -> str:
    return token.replace(WORD_MARKS["Metaspace"], " ")


def _from_bytes(token: str) -> str:
    if not BYTES.keys() >= {*token}:
        return token
    return bytes(map(BYTES.__getitem__, token)).decode(errors="surrogateescape")


def shown_token(text: str) -> str:
    """The text of a token as a person reads it alone; "##..." continues a word, in all models."""
    inside = text.removeprefix(" ")
    bare = inside.lstrip(" ")
    if not bare and text:
        return SPACE * len(text)
    begin = "" if text != inside else CONTINUATION
    spaces = SPACE * (len(inside) - len(bare))
    return begin + spaces + escaped(join_bytes(bare))


def join_bytes(text: str) -> str:
    """Joined texts of tokens: bytes become characters; those of none are shown as <0xD0>."""
    joined = text.encode(errors="surrogateescape").decode(errors="surrogateescape")
    return LONE_BYTE.sub(_as_number, joined)


def _as_number(match: re.Match[str]) -> str:
    return f"<0x{ord(match[0]) & 0xFF:02X}>"
