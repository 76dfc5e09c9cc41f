"""A tokenizer.json that is kept whole, such as the byte-level BPE of ModernBERT; tokens as text.

It is of a model other than WordPiece, or a WordPiece with added tokens, learned (`learn.py`) or
adopted. The tokens for padding, unknown text, start, separator and mask are known by role, as the
tokenizer_config.json beside it says: they may be spelled "<mask>". Rows are always
[CLS] A [SEP] B [SEP]. What tokens of each model add to a text, and how a person reads them:

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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import processors

from clozeline.pipeline.common.errors import InputError, escaped, first_names, one_line

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in the order of BERT's vocabulary
CONTINUATION = "##"
#: The character that begins the first token of a word, by the pre-tokenizer that writes it.
WORD_MARKS = {"ByteLevel": "\u0120", "Metaspace": "\u2581"}

#: Bytes that UTF-8 never contains, and control characters but tabs and line feeds: a vocabulary
#: may lack them, as BERT's and ModernBERT's do.
NOT_NEEDED = {0xC0, 0xC1, *range(0xF5, 0x100), *range(0x20), 0x7F} - set(b"\t\n")
TEXT_BYTES = frozenset(range(256)) - NOT_NEEDED
PLAIN_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHER_BYTES = sorted({*range(0x100)}.difference(PLAIN_BYTES))
#: Radford et al. (2019) write each byte as a printable character: a space is U+0120.
BYTES = {chr(byte): byte for byte in PLAIN_BYTES}
BYTES |= {chr(0x100 + i): byte for i, byte in enumerate(OTHER_BYTES)}
SPACE = "␣"  # how a token of a space alone is shown
LONE_BYTE = re.compile("[\udc80-\udcff]")


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
    def word_mark(self) -> str | None:
        """What the first token of a word begins with; None where the vocabulary does not say."""
        step = self.values.get("pre_tokenizer") or {}
        types = [part["type"] for part in (step, *step.get("pretokenizers", ())) if "type" in part]
        return next((WORD_MARKS[type_] for type_ in types if type_ in WORD_MARKS), None)

    def added(self, *, special: bool) -> frozenset[str]:
        """The added tokens that text never becomes, or those that it does."""
        tokens = self.values["added_tokens"]
        return frozenset(t["content"] for t in tokens if t["special"] == special)

    @cached_property
    def mask_strips(self) -> tuple[bool, bool]:
        """Whether [MASK] absorbs the spaces before it, and those after it."""
        tokens, mask_token = self.values["added_tokens"], self.special_tokens[-1]
        mask: dict[str, Any] = next((t for t in tokens if t["content"] == mask_token), {})
        return bool(mask.get("lstrip")), bool(mask.get("rstrip"))

    @cached_property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.text)
        return values


def is_wordpiece(values: dict[str, Any]) -> bool:
    """Whether a tokenizer.json has BERT's kind of model; files from 2020 do not name it."""
    model = values.get("model")
    return not isinstance(model, dict) or model.get("type", "WordPiece") == "WordPiece"


def read_spec(
    values: dict[str, Any], *, special_tokens: tuple[str, ...]
) -> tuple[list[str], TokenizerSpec]:
    """The tokens, by id, and the spec of a tokenizer.json with these special tokens, by role.

    Raises InputError where the library cannot read it, its BPE has dropout, an id, byte or special
    token is missing, or [MASK] has another role. Whatever its template, texts are [CLS] A [SEP] and
    pairs [CLS] A [SEP] B [SEP].
    """
    values = {**values, "model": {"type": "WordPiece", **values["model"]}}  # 2020's have no type
    added = values.get("added_tokens") or []
    if isinstance(added, list):
        for i, token in enumerate(added):  # text cannot become one of these
            if isinstance(token, dict) and token.get("content") in special_tokens:
                added[i] = {**token, "special": True}
    values |= {"added_tokens": added, "padding": None, "truncation": None, "post_processor": None}
    if values["model"].get("dropout"):
        raise InputError("its BPE drops merges at random (dropout); set dropout to null.")
    spec = _spec_of(values, special_tokens)
    try:
        library = spec.library()
    except BaseException as error:  # the library's errors are bare exceptions and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(
            f"the library `tokenizers` cannot read it ({one_line(error)}); replace the file."
        ) from error
    vocabulary = library.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    _check_ids(vocabulary, added)
    if missing := [token for token in special_tokens if token not in vocabulary]:
        raise InputError(
            f"the vocabulary of {len(tokens):,} tokens lacks {', '.join(missing)}; only tokenizers "
            "with BERT's special tokens can be used, under these names or those that "
            "tokenizer_config.json gives them."
        )
    if special_tokens.count(mask := special_tokens[-1]) > 1:
        raise InputError(
            f"its mask token {mask} has another role in tokenizer_config.json, too; name another."
        )
    _check_unknown(values["model"], library.get_vocab(with_added_tokens=False), spec)
    cls, sep = special_tokens[2:4]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, library.token_to_id(name)) for name in (cls, sep)],
    )
    values["post_processor"] = json.loads(library.to_str())["post_processor"]
    return tokens, _spec_of(values, special_tokens)


def _check_ids(vocabulary: dict[str, int], added: list[dict[str, Any]]) -> None:
    """Raises InputError unless the ids are 0 to V - 1, and added tokens have those of the file."""
    for token in added:
        content, found = token["content"], vocabulary.get(token["content"])
        if found != token["id"]:  # the library gives it the next free id, or leaves it out
            fate = "leaves out; remove it"
            if found is not None:
                fate = f"would read as {found}: remove it, or add it last, after all others"
            raise InputError(
                f"it adds the token {content!r} with id {token['id']}, which the library {fate}."
            )
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise InputError(
            f"the ids of its {len(vocabulary):,} tokens are not 0 to {len(vocabulary) - 1:,}, each "
            "once; replace the file."
        )


def _check_unknown(model: dict[str, Any], known: dict[str, int], spec: TokenizerSpec) -> None:
    """Raises InputError for a model that loses text that it does not know, or fails at it."""
    unk, is_byte_level = model.get("unk_token"), spec.word_mark == WORD_MARKS["ByteLevel"]
    lost = [byte for mark, byte in BYTES.items() if byte in TEXT_BYTES and mark not in known]
    if model["type"] == "Unigram":
        is_safe = model.get("unk_id") is not None
    else:
        is_safe = unk in known or (model["type"] == "BPE" and is_byte_level and not lost)
    if is_safe:
        return
    if is_byte_level and lost and not unk:
        raise InputError(
            f"its vocabulary lacks {len(lost)} of the {len(TEXT_BYTES)} bytes that text has "
            f"({first_names([f'0x{byte:02X}' for byte in sorted(lost)])}), and text would lose "
            "them without a trace; learn one with `clozeline tokenizer --model bpe`."
        )
    named = "" if unk is None else f", and {unk!r} is not in its vocabulary"
    raise InputError(
        f"its {model['type']} has no token for what it does not know{named}; add one, as "
        f"{'unk_id' if model['type'] == 'Unigram' else 'unk_token'}."
    )


def _spec_of(values: dict[str, Any], special_tokens: tuple[str, ...]) -> TokenizerSpec:
    return TokenizerSpec(json.dumps(values, sort_keys=True, separators=(",", ":")), special_tokens)


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
    special = spec.added(special=True).union(spec.special_tokens)
    added = spec.added(special=False)
    return [
        f" {token}" if token in special else token if token in added else _spelled(token, mark)
        for token in tokens
    ]


def _spelled(token: str, mark: str) -> str:
    if mark == WORD_MARKS["Metaspace"]:
        return token.replace(mark, " ")
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
    return LONE_BYTE.sub(lambda byte: f"<0x{ord(byte[0]) & 0xFF:02X}>", joined)
