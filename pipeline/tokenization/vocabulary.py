"""Reads vocabularies: a vocab.txt, or a tokenizer.json with the flags of its normalizer."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_values
from clozeline.pipeline.common.paths import AnyPath, is_file, read_file
from clozeline.pipeline.tokenization.tokenizer_spec import CONTINUATION as CONTINUATION
from clozeline.pipeline.tokenization.tokenizer_spec import SPECIAL_TOKENS as SPECIAL_TOKENS
from clozeline.pipeline.tokenization.tokenizer_spec import TokenizerSpec, is_wordpiece, read_spec

TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
#: Fields of `Normalization` -> options of BertTokenizer, which has none for `clean_text`.
FLAGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
ANY_TOKENIZER = "PreTrainedTokenizerFast"  # does what tokenizer.json says
UNWRITABLE = re.compile("[\n\ud800-\udfff]")  # in a vocab.txt: line feeds, lone surrogates
MAX_UPPER = 0.01  #: of the tokens of an uncased vocabulary may have upper case
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK], as in Google's code

# The settings of BERT's tokenizer.json: (part, setting, value).
BERT_SETTINGS = (
    ("normalizer", "type", "BertNormalizer"),
    ("pre_tokenizer", "type", "BertPreTokenizer"),
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
    if not is_file(path):
        found = "it is a folder" if path.is_dir() else "no such file"
        raise InputError(f"cannot read {path}: {found}; give a vocab.txt or a tokenizer.json.")
    try:
        text = read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first.") from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_tokenizer_json(path: AnyPath) -> tuple[list[str], Normalization | TokenizerSpec]:
    """The tokens and the normalizer's flags. Padding, truncation and templates are ignored here.

    For models other than WordPiece, and a WordPiece with added tokens, the spec takes the place of
    the flags. Raises InputError for a WordPiece that is not BERT's, and for a spec that cannot be
    used.
    """
    values = read_json_object(path)
    files = [path.parent / name for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)]
    configs = [read_json_object(file) for file in files if is_file(file)]
    try:
        flags = _bert_flags(values) if is_wordpiece(values) else None
        added = values.get("added_tokens") or []
        is_plain = flags is not None and all(
            isinstance(token, dict) and token.get("content") in SPECIAL_TOKENS
            for token in (added if isinstance(added, list) else [added])
        )
        special_tokens = SPECIAL_TOKENS if is_plain else special_tokens_of(configs, added)
        tokens, spec = read_spec(values, special_tokens=special_tokens)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return tokens, flags if flags and is_plain else spec


def _bert_flags(values: dict[str, Any]) -> Normalization:
    """The flags of a tokenizer.json. Raises InputError for a WordPiece that is not BERT's."""
    for part, setting, wanted in BERT_SETTINGS:
        step = values.get(part)
        if (found := step.get(setting) if isinstance(step, dict) else None) != wanted:
            raise InputError(
                f"it is not a BERT tokenizer: {part} {setting} is {found!r}, not {wanted!r}; give "
                "a vocab.txt, or a tokenizer.json of BERT's."
            )
    flags = {name: values["normalizer"].get(name) for name in Normalization.__dataclass_fields__}
    return _normalization(flags, {name: f"normalizer {name}" for name in flags})


def _normalization(flags: dict[str, Any], names: Mapping[str, str]) -> Normalization:
    """The flags; `names` is what they are called in the file. Raises InputError."""
    if flags["strip_accents"] is None:  # the library then strips accents if it lower-cases
        flags["strip_accents"] = flags["lowercase"]
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{names[name]} is {flag!r}; it must be true or false.")
    return Normalization(**flags)


def flags_of(config: dict[str, Any], path: AnyPath) -> Normalization:
    """The flags that a tokenizer_config.json gives, at this path. Raises InputError."""
    defaults = {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
    flags = {name: config.get(FLAGS[name], default) for name, default in defaults.items()}
    return _normalization(flags, {name: f"{path}: {option}" for name, option in FLAGS.items()})


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


def read_json_object(
    path: AnyPath, advice: str = "replace it, or give another vocabulary"
) -> dict[str, Any]:
    with json_values(path, advice) as values:
        return values


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


def transformers_files(
    special_tokens: Sequence[str],
    flags: Mapping[str, bool] | None,
    *,
    max_seq_length: int | None,
    has_segments: bool,
    cuts_start: bool = False,
) -> dict[str, str]:
    """The content of both files by name, for a tokenizer with these normalizer flags.

    `flags` None: it is not a WordPiece. `max_seq_length` None: not known. Without `has_segments`,
    `transformers` gives the model no token_type_ids. With `cuts_start` it truncates texts at their
    start. Text that spells [MASK] becomes the token
    there, unless the tokenizer is loaded with `split_special_tokens`.
    """
    special = dict(zip(SPECIAL_NAMES, special_tokens, strict=True))
    is_bert = flags is not None and flags["clean_text"]
    config: dict[str, object] = {"tokenizer_class": "BertTokenizer" if is_bert else ANY_TOKENIZER}
    if max_seq_length is not None:
        config["model_max_length"] = max_seq_length
    if cuts_start:
        config["truncation_side"] = "left"
    config["clean_up_tokenization_spaces"] = True
    if flags is not None and is_bert:
        config |= {name: flags[ours] for ours, name in FLAGS.items()}
    config |= special
    if not has_segments:
        config["model_input_names"] = ["input_ids", "attention_mask"]
    files = {TOKENIZER_CONFIG: config, SPECIAL_TOKENS_MAP: special}
    return {name: json.dumps(values, indent=2) + "\n" for name, values in files.items()}
