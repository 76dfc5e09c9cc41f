"""Reads vocabularies: a vocab.txt, or a tokenizer.json with the flags of its normalizer."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.store import is_file, read_file
from clozeline.pipeline.tokenization.tokenizer_spec import SPECIAL_TOKENS as SPECIAL_TOKENS
from clozeline.pipeline.tokenization.tokenizer_spec import TokenizerSpec, is_wordpiece, read_spec
from clozeline.pipeline.tokenization.transformers_files import (
    FLAGS,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    special_tokens_of,
)

CONTINUATION = "##"
UNWRITABLE = re.compile("[\n\ud800-\udfff]")  # in a vocab.txt: line feeds, lone surrogates
MAX_UPPER = 0.01  #: of the tokens of an uncased vocabulary may have upper case
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK], as in Google's code

# The settings of BERT's tokenizer.json: (part, setting, value).
BERT_SETTINGS = (
    ("normalizer", "type", "BertNormalizer"),
    ("pre_tokenizer", "type", "BertPreTokenizer"),
    ("model", "type", "WordPiece"),
    ("model", "unk_token", "[UNK]"),
    ("model", "continuing_subword_prefix", CONTINUATION),
    ("model", "max_input_chars_per_word", MAX_WORD_CHARACTERS),
)


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """The steps of BertNormalizer, in order, before text is split into words."""

    clean_text: bool = True  #: drop control characters, turn all whitespace into spaces
    handle_chinese_chars: bool = True  #: put spaces around each Chinese character
    strip_accents: bool  #: decompose (NFD), drop nonspacing marks
    lowercase: bool


def wordpiece_library(tokens: Sequence[str], normalization: Normalization) -> tokenizers.Tokenizer:
    """BERT's tokenizer with these tokens, as the library has it."""
    ids = {token: i for i, token in enumerate(tokens)}
    library = tokenizers.Tokenizer(
        models.WordPiece(
            ids,
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    library.normalizer = normalizers.BertNormalizer(**asdict(normalization))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    library.decoder = decoders.WordPiece(prefix=CONTINUATION)
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


def read_vocab_txt(path: AnyPath) -> list[str]:
    """The lines of a vocab.txt, in order; `str.splitlines` would also split at U+2028."""
    lines = _read_text(path).removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def read_tokenizer_json(path: AnyPath) -> tuple[list[str], Normalization | TokenizerSpec]:
    """The tokens and the normalizer's flags. Padding, truncation and templates are ignored here.

    For models other than WordPiece, and a WordPiece with added tokens, the spec takes the place of
    the flags. Raises InputError for a WordPiece that is not BERT's, and for a spec that cannot be
    used.
    """
    spec = read_json_object(path)
    if not is_wordpiece(spec):
        return _read_spec(path, spec)
    parts = {part: _part(spec, part) for part in ("normalizer", "pre_tokenizer", "model")}
    parts["model"] = {"type": "WordPiece", **parts["model"]}  # files from 2020 have no type
    for part, setting, wanted in BERT_SETTINGS:
        if parts[part].get(setting) != wanted:
            raise InputError(
                f"{path} is not a BERT tokenizer: {part} {setting} is "
                f"{parts[part].get(setting)!r}, not {wanted!r}; give a vocab.txt, or a "
                "tokenizer.json of BERT's."
            )
    vocabulary, added = _part(parts["model"], "vocab"), spec.get("added_tokens") or []
    if not isinstance(added, list):
        raise InputError(f"{path}: added_tokens is not a list; give the vocab.txt instead.")
    if any(
        isinstance(token, dict) and token.get("content") not in SPECIAL_TOKENS for token in added
    ):
        _read_normalization(path, parts["normalizer"])
        return _read_spec(path, spec)
    _check_ids(path, vocabulary)
    _check_special_tokens(path, added, vocabulary)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    return tokens, _read_normalization(path, parts["normalizer"])


def _read_spec(path: AnyPath, values: dict[str, Any]) -> tuple[list[str], TokenizerSpec]:
    """The tokens and the spec of a tokenizer.json that is kept whole. Raises InputError."""
    try:
        files = [path.parent / name for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)]
        configs = [read_json_object(file) for file in files if is_file(file)]
        return read_spec(values, special_tokens=special_tokens_of(configs))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _check_ids(path: AnyPath, vocabulary: dict[str, Any]) -> None:
    ids = list(vocabulary.values())
    if all(type(i) is int for i in ids) and sorted(ids) == list(range(len(ids))):
        return
    strays = [repr(i) for i in ids if type(i) is not int or not 0 <= i < len(ids)]
    found = f"{strays[0]} is out of range" if strays else "one is repeated"
    raise InputError(
        f"{path}: the ids of {len(ids):,} tokens must be 0 to {len(ids) - 1}, each once, "
        f"but {found}; give the vocab.txt instead."
    )


def _check_special_tokens(path: AnyPath, added: list[Any], vocabulary: dict[str, int]) -> None:
    for token in added:
        spec = token if isinstance(token, dict) else {}
        content, i = spec.get("content"), spec.get("id")
        if content is None or vocabulary.get(content) != i:
            raise InputError(
                f"{path} adds the token {content!r} (id {i}), which has another id in its "
                "vocabulary; remove it, or give the vocab.txt."
            )


def _read_normalization(path: AnyPath, spec: dict[str, Any]) -> Normalization:
    flags = {name: spec.get(name) for name in Normalization.__dataclass_fields__}
    if flags["strip_accents"] is None:  # the library then strips accents if it lower-cases
        flags["strip_accents"] = flags["lowercase"]
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{path}: normalizer {name} is {flag!r}; it must be true or false.")
    return Normalization(**flags)  # type: ignore[arg-type]


def flags_of(config: dict[str, Any], path: AnyPath) -> Normalization:
    """The flags that a tokenizer_config.json gives, at this path. Raises InputError."""
    lowercase, accents = config.get("do_lower_case", True), config.get("strip_accents")
    flags = {
        "lowercase": lowercase,
        "strip_accents": lowercase if accents is None else accents,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
    }
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{path}: {FLAGS[name]} is {flag!r}; it must be true or false.")
    return Normalization(**flags)


def vocab_txt_flags(
    path: AnyPath, tokens: Sequence[str], *, cased: bool | None, strip_accents: bool | None
) -> Normalization:
    """The flags of a vocab.txt: as the options say, else the tokenizer_config.json beside it.

    Raises InputError where neither says whether a vocabulary with upper case is cased.
    """
    config = path.parent / TOKENIZER_CONFIG
    if cased is None and is_file(config):
        flags = flags_of(read_json_object(config), config)
        return flags if strip_accents is None else replace(flags, strip_accents=strip_accents)
    words = [token for token in tokens if not token.startswith("[")]
    upper = sum(token != token.lower() for token in words)
    if cased is None and upper > MAX_UPPER * len(words):
        raise InputError(
            f"{path}: {upper:,} of its {len(words):,} tokens have upper case, and no "
            f"{TOKENIZER_CONFIG} beside it says whether it is cased; add --cased, or --uncased."
        )
    return normalization_of(cased=bool(cased), strip_accents=strip_accents)


def normalization_of(*, cased: bool, strip_accents: bool | None) -> Normalization:
    """The flags of a vocabulary; by default accents are stripped unless it is cased."""
    strip = not cased if strip_accents is None else strip_accents
    return Normalization(strip_accents=strip, lowercase=not cased)


def _read_text(path: AnyPath) -> str:
    if not is_file(path):
        found = "it is a folder" if path.is_dir() else "no such file"
        raise InputError(f"cannot read {path}: {found}; give a vocab.txt or a tokenizer.json.")
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first.") from error


def read_json_object(path: AnyPath) -> dict[str, Any]:
    text = _read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of 5,000 digits
        raise InputError(f"{path} is not JSON ({error}); replace it.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a JSON {type(value).__name__}, not an object; replace it.")
    return value


def _part(spec: dict[str, Any], name: str) -> dict[str, Any]:
    part = spec.get(name)
    return part if isinstance(part, dict) else {}
