"""Reads vocabularies as they are published: a vocab.txt, or a tokenizer.json of any model.

A tokenizer.json of BERT's WordPiece gives its tokens and the flags of its normalizer. Any other is
kept whole. Padding, truncation and templates are ignored: rows are [CLS] A [SEP] B [SEP].
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import tokenizers
from tokenizers import processors

from clozeline.pipeline.common.errors import InputError, first_names, one_line
from clozeline.pipeline.common.json_files import json_values
from clozeline.pipeline.common.paths import AnyPath, is_file, read_file
from clozeline.pipeline.tokenization.vocabulary import (
    BYTES,
    FLAGS,
    SPECIAL_NAMES,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    WORD_MARKS,
    Normalization,
    TokenizerSpec,
    canonical_json,
)

ADVICE = "replace it, or give another vocabulary"
ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
MAX_UPPER = 0.01  #: of the tokens of an uncased vocabulary may have upper case
#: The settings of BERT's model; a word of more characters is unknown, as in Google's code.
BERT_MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
#: Bytes that UTF-8 never contains, and control characters but tabs and line feeds: a vocabulary
#: may lack them, as BERT's and ModernBERT's do.
TEXT_BYTES = {*b"\t\n", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)}


def read_vocab_txt(path: AnyPath) -> list[str]:
    """The lines of a vocab.txt, in order; `str.splitlines` would also split at U+2028."""
    if not is_file(path):
        found = "it is a folder" if path.is_dir() else "no such file"
        raise InputError(f"cannot read {path}: {found}; give a vocab.txt or a tokenizer.json.")
    try:
        text = read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first.") from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


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
    return Normalization.of(cased=bool(cased), strip_accents=strip_accents)


def flags_of(config: Mapping[str, Any], path: AnyPath) -> Normalization:
    """The flags that a tokenizer_config.json gives, at this path. Raises InputError."""
    lowercase = config.get("do_lower_case", True)
    strip_accents = config.get("strip_accents")
    flags = {
        "lowercase": lowercase,
        "strip_accents": lowercase if strip_accents is None else strip_accents,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
    }
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{path}: {FLAGS[name]} is {flag!r}; it must be true or false.")
    return Normalization(**flags)


def read_json_object(path: AnyPath, advice: str = ADVICE) -> dict[str, Any]:
    with json_values(path, advice) as values:
        return values


def read_tokenizer_json(path: AnyPath) -> tuple[list[str], Normalization | TokenizerSpec]:
    """The tokens of a file, and the flags of its normalizer or, of another model, the spec.

    Raises InputError where `read_spec` does, which then names the file.
    """
    files = [path.parent / name for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)]
    configs = [read_json_object(file) for file in files if is_file(file)]
    with json_values(path, ADVICE) as values:
        special_tokens = special_tokens_of(configs, values.get("added_tokens"))
        try:
            return read_spec(values, special_tokens=special_tokens)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def special_tokens_of(configs: Sequence[Mapping[str, Any]], added: object) -> tuple[str, ...]:
    """The special tokens by role: as the first of these files that names one does.

    Else BERT's, or RoBERTa's where only its mask token is an added one.
    """
    is_roberta = ROBERTA_TOKENS[-1] in str(added) and SPECIAL_TOKENS[-1] not in str(added)
    found: list[str] = []
    defaults = ROBERTA_TOKENS if is_roberta else SPECIAL_TOKENS
    for role, default in zip(SPECIAL_NAMES, defaults, strict=True):
        named = next((config[role] for config in configs if config.get(role)), default)
        content = named.get("content") if isinstance(named, dict) else named
        found.append(content if isinstance(content, str) else default)
    return tuple(found)


def read_spec(
    values: dict[str, Any], *, special_tokens: tuple[str, ...]
) -> tuple[list[str], Normalization | TokenizerSpec]:
    """The tokens of a tokenizer.json, by id, and how it splits text. Its `values` are changed.

    Raises InputError where the library cannot read it, its BPE has dropout, an id, byte or special
    token is missing, or [MASK] has another role.
    """
    added = values["added_tokens"] = values.get("added_tokens") or []
    model = values["model"] = {"type": "WordPiece", **values["model"]}  # 2020's have no type
    values |= {"padding": None, "truncation": None, "post_processor": None}
    if model.get("dropout"):
        raise InputError("its BPE drops merges at random (dropout); set dropout to null.")
    library = _read_by_library(values)
    flags = _bert_flags(json.loads(library.to_str()))  # in full: a file may leave out what is usual
    if flags:  # whatever a config beside it says
        special_tokens = SPECIAL_TOKENS
    vocabulary = library.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
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
    for token in added:  # text cannot become one of these
        token["special"] = token["special"] or token["content"] in special_tokens
    cls, sep = special_tokens[2:4]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, vocabulary[name]) for name in (cls, sep)],
    )
    values["post_processor"] = json.loads(library.to_str())["post_processor"]
    spec = TokenizerSpec(canonical_json(values), special_tokens)
    _check_unknown(library.get_vocab(with_added_tokens=False), spec)
    return tokens, flags or spec


def _read_by_library(values: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(canonical_json(values))
    except BaseException as error:  # the library's errors are bare exceptions and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(
            f"the library `tokenizers` cannot read it ({one_line(error)}); replace the file."
        ) from error


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


def _check_unknown(known: Mapping[str, int], spec: TokenizerSpec) -> None:
    """Raises InputError for a model that loses text that it does not know, or fails at it."""
    model, is_byte_level = spec.values["model"], spec.word_mark == WORD_MARKS["ByteLevel"]
    role = "unk_id" if model["type"] == "Unigram" else "unk_token"
    unknown = model.get(role)
    lost = [byte for mark, byte in BYTES.items() if byte in TEXT_BYTES and mark not in known]
    has_bytes = model["type"] == "BPE" and is_byte_level and not lost
    if has_bytes or unknown in known or (role == "unk_id" and unknown is not None):
        return
    if is_byte_level and lost and not unknown:
        raise InputError(
            f"its vocabulary lacks {len(lost)} of the {len(TEXT_BYTES)} bytes that text has "
            f"({first_names([f'0x{byte:02X}' for byte in sorted(lost)])}), and text would lose "
            "them without a trace; learn one with `clozeline tokenizer --model bpe`."
        )
    named = "" if unknown is None else f", and {unknown!r} is not in its vocabulary"
    raise InputError(
        f"its {model['type']} has no token for what it does not know{named}; add one, as {role}."
    )


def _bert_flags(values: Mapping[str, Any]) -> Normalization | None:
    """The flags of the normalizer where all else is BERT's, as the library writes it in full."""
    normalizer, step = values["normalizer"] or {}, values["pre_tokenizer"] or {}
    is_berts = (
        normalizer.get("type") == "BertNormalizer"
        and step.get("type") == "BertPreTokenizer"
        and BERT_MODEL.items() <= values["model"].items()
        and {token["content"] for token in values["added_tokens"]} <= {*SPECIAL_TOKENS}
    )
    if not is_berts:
        return None
    flags = {field.name: normalizer[field.name] for field in fields(Normalization)}
    if flags["strip_accents"] is None:  # the library then strips accents if it lower-cases
        flags["strip_accents"] = flags["lowercase"]
    return Normalization(**flags)
