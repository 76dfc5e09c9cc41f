"""What a tokenizer is built from: tokens, how text is split into them, what they add to a text.

`Normalization` is for BERT's WordPiece: with the flags of its normalizer, all follows from the
tokens. `TokenizerSpec` is a tokenizer.json that is kept whole, such as the byte-level BPE of
ModernBERT or a WordPiece with added tokens, learned (`learn.py`) or adopted. Its tokens for
padding, unknown text, start, separator and mask are known by role: they may be spelled "<mask>".

What tokens of each model add to a text, and how a person reads them:

    WordPiece  BPE    Unigram    text        shown
    the        Ġthe   ▁the       " the"      the
    ##s        s      s          "s"         ##s
               Ġ      ▁          " "         ␣
               Ð                 "\\udcd0"   ##<0xD0>    a byte of a character of several tokens

Such a byte is a surrogate (PEP 383) until the tokens of its character are joined.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from clozeline.pipeline.common.errors import InputError, escaped

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in the order of BERT's vocabulary
CONTINUATION = "##"
TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
#: Fields of `Normalization` -> options of BertTokenizer, which has none for `clean_text`.
FLAGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
UNWRITABLE = re.compile("[\n\ud800-\udfff]")  # in a vocab.txt: line feeds, lone surrogates

#: The character that begins the first token of a word, by the pre-tokenizer that writes it.
WORD_MARKS = {"ByteLevel": "\u0120", "Metaspace": "\u2581"}
#: Radford et al. (2019) write bytes as characters: printable ones as themselves, the others from
#: U+0100 on, so a space is U+0120.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PLAIN_BYTES = [ord(character) for character in ALPHABET if ord(character) < 0x100]
OTHER_BYTES = sorted({*range(0x100)}.difference(PLAIN_BYTES))
BYTES = dict(zip(ALPHABET, PLAIN_BYTES + OTHER_BYTES, strict=True))
SPACE = "␣"  # how a token of a space alone is shown
LONE_BYTE = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """The steps of BertNormalizer, in order, before text is split into words."""

    clean_text: bool = True  #: drop control characters, turn all whitespace into spaces
    handle_chinese_chars: bool = True  #: put spaces around each Chinese character
    strip_accents: bool  #: decompose (NFD), drop nonspacing marks
    lowercase: bool

    # What a TokenizerSpec says of other vocabularies.
    special_tokens: ClassVar[tuple[str, ...]] = SPECIAL_TOKENS
    reserved: ClassVar[frozenset[str]] = frozenset(SPECIAL_TOKENS)
    added: ClassVar[frozenset[str]] = frozenset()
    word_mark: ClassVar[str | None] = None
    continuation: ClassVar[str] = CONTINUATION
    mask_strips: ClassVar[tuple[bool, bool]] = (False, False)

    @classmethod
    def of(cls, *, cased: bool, strip_accents: bool | None) -> "Normalization":
        """The flags of a vocabulary; by default accents are stripped unless it is cased."""
        strip = not cased if strip_accents is None else strip_accents
        return cls(strip_accents=strip, lowercase=not cased)


@dataclass(frozen=True)
class TokenizerSpec:
    """The content of a tokenizer.json, as canonical JSON, without padding and truncation."""

    text: str
    special_tokens: tuple[str, ...] = SPECIAL_TOKENS  #: by role, in the order of BERT's

    def library(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, for which text that spells [MASK] stays text."""
        library = tokenizers.Tokenizer.from_str(self.text)
        library.encode_special_tokens = True
        return library

    @cached_property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.text)
        return values

    @cached_property
    def reserved(self) -> frozenset[str]:
        """The tokens that text never becomes: the special ones, and those added as such."""
        added = (t["content"] for t in self.values["added_tokens"] if t["special"])
        return frozenset((*self.special_tokens, *added))

    @cached_property
    def added(self) -> frozenset[str]:
        """The other added tokens."""
        return frozenset(t["content"] for t in self.values["added_tokens"]) - self.reserved

    @cached_property
    def word_mark(self) -> str | None:
        """What the first token of a word begins with; None where the vocabulary does not say."""
        step = self.values.get("pre_tokenizer") or {}
        types = [part["type"] for part in (step, *step.get("pretokenizers", ())) if "type" in part]
        return next((WORD_MARKS[type_] for type_ in types if type_ in WORD_MARKS), None)

    @cached_property
    def continuation(self) -> str:
        """What the other tokens of a word begin with; "" where the vocabulary does not say."""
        model = self.values["model"]
        prefix: str = model.get("continuing_subword_prefix", CONTINUATION)
        return prefix if model["type"] == "WordPiece" else ""

    @cached_property
    def mask_strips(self) -> tuple[bool, bool]:
        """Whether [MASK] absorbs the spaces before it, and those after it."""
        tokens, mask_token = self.values["added_tokens"], self.special_tokens[-1]
        mask: dict[str, Any] = next((t for t in tokens if t["content"] == mask_token), {})
        return bool(mask.get("lstrip")), bool(mask.get("rstrip"))


def wordpiece_library(tokens: Sequence[str], normalization: Normalization) -> tokenizers.Tokenizer:
    """BERT's tokenizer with these tokens, as the library has it."""
    ids = {token: i for i, token in enumerate(tokens)}
    # By default a word of over 100 characters is unknown, as in Google's code.
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(**asdict(normalization))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(list(SPECIAL_TOKENS))
    library.encode_special_tokens = True  # text never becomes a special token
    return library


def check_tokens(tokens: Sequence[str]) -> None:
    """Raises InputError if a list of tokens cannot be a BERT vocabulary; id i is line i + 1."""
    first: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not token or UNWRITABLE.search(token):
            raise InputError(
                f"id {i} (line {i + 1}) is {token!r}, which is not a token; remove it."
            )
        if first.setdefault(token, i) != i:
            raise InputError(
                f"id {i} (line {i + 1}) repeats id {first[token]} (line {first[token] + 1}), "
                f"{token!r}; remove one of them."
            )
    missing = [token for token in SPECIAL_TOKENS if token not in first]
    if missing:
        raise InputError(
            f"the vocabulary of {len(tokens):,} tokens lacks {', '.join(missing)}; "
            "BERT needs them: add a line for each, or give another vocabulary."
        )


def canonical_json(value: Any) -> str:
    """Equal values give equal text: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def token_texts(tokens: Sequence[str], of: Normalization | TokenizerSpec) -> list[str]:
    """What each token adds to a text, [V]: a space first where it begins a word."""
    mark, prefix = of.word_mark, of.continuation

    def text_of(token: str) -> str:
        if token in of.reserved:
            return f" {token}"
        if mark is None:  # tokens are words, or say that they continue one
            is_inside = prefix and token.startswith(prefix)
            return token.removeprefix(prefix) if is_inside else f" {token}"
        if token in of.added:
            return token
        token = token.removeprefix(prefix)
        if mark == WORD_MARKS["Metaspace"]:
            return token.replace(mark, " ")
        if not BYTES.keys() >= {*token}:
            return token
        return bytes(map(BYTES.__getitem__, token)).decode(errors="surrogateescape")

    return list(map(text_of, tokens))


def shown_token(text: str) -> str:
    """The text of a token as a person reads it alone; "##..." continues a word, in all models."""
    bare = text.lstrip(" ")
    spaces = len(text) - len(bare)
    if spaces and not bare:
        return SPACE * spaces
    begin = SPACE * (spaces - 1) if spaces else CONTINUATION
    return begin + escaped(join_bytes(bare))


def join_bytes(text: str) -> str:
    """Joined texts of tokens: bytes become characters; those of none are shown as <0xD0>."""
    joined = text.encode(errors="surrogateescape").decode(errors="surrogateescape")
    return LONE_BYTE.sub(lambda byte: f"<0x{ord(byte[0]) & 0xFF:02X}>", joined)
