"""A tokenizer.json of a model other than WordPiece, such as the byte-level BPE of ModernBERT.

It is adopted as it is and never learned here: the library encodes with it. All it must have are
BERT's special tokens and the template [CLS] A [SEP] B [SEP].
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers

from clozeline.pipeline.common.errors import InputError, one_line

#: The character that begins the first token of a word, by the pre-tokenizer that writes it.
WORD_MARKS = {"ByteLevel": "\u0120", "Metaspace": "\u2581"}


@dataclass(frozen=True)
class TokenizerSpec:
    """The content of a tokenizer.json, as canonical JSON, without padding and truncation."""

    text: str

    def library(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, for which text that spells [MASK] stays text."""
        library = tokenizers.Tokenizer.from_str(self.text)
        library.encode_special_tokens = True
        return library

    @cached_property
    def word_mark(self) -> str | None:
        """What the first token of a word begins with; None where the vocabulary does not say."""
        step = self._values.get("pre_tokenizer") or {}
        types = [part["type"] for part in (step, *step.get("pretokenizers", ())) if "type" in part]
        return next((WORD_MARKS[type_] for type_ in types if type_ in WORD_MARKS), None)

    @cached_property
    def mask_strips(self) -> tuple[bool, bool]:
        """Whether [MASK] absorbs the spaces before it, and those after it."""
        added = self._values.get("added_tokens") or []
        mask: dict[str, Any] = next((token for token in added if token["content"] == "[MASK]"), {})
        return bool(mask.get("lstrip")), bool(mask.get("rstrip"))

    @cached_property
    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.text)
        return values


def is_wordpiece(values: dict[str, Any]) -> bool:
    """Whether a tokenizer.json has BERT's kind of model; files from 2020 do not name it."""
    model = values.get("model")
    return not isinstance(model, dict) or model.get("type", "WordPiece") == "WordPiece"


def read_spec(
    values: dict[str, Any], *, special_tokens: tuple[str, ...]
) -> tuple[list[str], TokenizerSpec]:
    """The tokens, by id, and the spec of a tokenizer.json.

    Raises InputError where the library cannot read it, its BPE has dropout, an id or a special
    token is missing, or pairs are not [CLS] A [SEP] B [SEP].
    """
    added = values.get("added_tokens") or []
    if isinstance(added, list):
        added = [_as_special(token, special_tokens) for token in added]
    values = {**values, "added_tokens": added, "padding": None, "truncation": None}
    if values["model"].get("dropout"):
        raise InputError("its BPE drops merges at random (dropout); set dropout to null.")
    spec = TokenizerSpec(json.dumps(values, sort_keys=True, separators=(",", ":")))
    with _library_errors():
        library = spec.library()
    vocabulary = library.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    ids = {token["content"]: token["id"] for token in added}
    stored = vocabulary | ids  # the library gives an added token another id where it must
    if [stored[token] for token in tokens] != list(range(len(tokens))):
        raise InputError(f"the ids of its {len(tokens):,} tokens are not 0 to {len(tokens) - 1:,}.")
    if missing := [token for token in special_tokens if token not in vocabulary]:
        raise InputError(
            f"the vocabulary of {len(tokens):,} tokens lacks {', '.join(missing)}; only tokenizers "
            "with BERT's special tokens can be used."
        )
    with _library_errors():
        _check_template(library)
    return tokens, spec


def _as_special(token: Any, special_tokens: tuple[str, ...]) -> Any:
    """An added token, flagged as special if it is one of these, so that text cannot become it."""
    is_special = isinstance(token, dict) and token.get("content") in special_tokens
    return {**token, "special": True} if is_special else token


@contextmanager
def _library_errors() -> Iterator[None]:
    """Turn the library's errors, which are bare exceptions and panics, into InputErrors."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(
            f"the library `tokenizers` cannot read it ({one_line(error)}); replace the file."
        ) from error


def _check_template(library: tokenizers.Tokenizer) -> None:
    first, second = (library.encode(text, add_special_tokens=False).ids for text in "ab")
    cls_id, sep_id = library.token_to_id("[CLS]"), library.token_to_id("[SEP]")
    pair = library.encode("a", "b").ids
    if pair != [cls_id, *first, sep_id, *second, sep_id]:
        found = " ".join(str(library.id_to_token(i)) for i in pair)
        raise InputError(f"it writes a pair as {found}, not as [CLS] A [SEP] B [SEP].")
