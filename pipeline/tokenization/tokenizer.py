"""The tokenizer folder: a BERT WordPiece vocabulary, its normalizer flags and Punkt's parameters.

    work/tokenizer/   vocab.txt   punkt.json   tokenizer.json
                      tokenizer_config.json   special_tokens_map.json

A tokenizer consists of a list of tokens (id = index in the list), four normalizer flags and,
optionally, the sentence splitter's parameters. The library's tokenizer is always built from these
alone, whatever file a vocabulary comes from, and the digest covers exactly these. So a
`tokenizer.json` with settings that differ from BERT's is refused.

Text never becomes a special token. By default the library turns text that spells "[MASK]" into
one, and it saves this setting neither in `tokenizer.json` nor in a pickle; here it is set in the
only place where the library's tokenizer is built.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pipeline.common.checksums import SUMS, check_sums, sums_of
from pipeline.common.errors import InputError
from pipeline.common.paths import AnyPath, names_in, path_of, whole_file
from pipeline.tokenization.transformers_files import (
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    transformers_files,
)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in the order of BERT's vocabulary
CONTINUATION = "##"
PunktJson = dict[str, Any] | None  # see PunktData.to_json
UNWRITABLE = re.compile("[\n\ud800-\udfff]")  # in a vocab.txt: line feeds, lone surrogates
VOCAB_TXT, PUNKT_JSON, TOKENIZER_JSON = "vocab.txt", "punkt.json", "tokenizer.json"
TOKENIZER_FILES = (
    VOCAB_TXT,
    PUNKT_JSON,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
    SUMS,
    TOKENIZER_JSON,
)
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


class Tokenizer:
    """A BERT WordPiece tokenizer and the properties of its vocabulary of V tokens.

    tokens            list[str] [V]    id -> token
    is_special        bool      [V]    one of SPECIAL_TOKENS
    is_continuation   bool      [V]    "##..." tokens, which continue a word
    replacement_ids   uint32    [R]    candidates for a random token: no special, no "[unused..."
    punkt             dict | None      Punkt's parameters, as read from JSON
    digest            str              sha256, hex, of tokens, flags and Punkt's parameters
    library           tokenizers.Tokenizer

    Raises InputError for a vocabulary that cannot be BERT's. Unpickling builds it anew.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        normalization: Normalization,
        punkt: dict[str, Any] | None = None,
    ) -> None:
        check_tokens(tokens)
        self.tokens = list(tokens)
        self.vocab_size = len(tokens)
        self.normalization = normalization
        self.punkt: dict[str, Any] | None = json.loads(canonical_json(punkt))
        special_ids = [self.tokens.index(token) for token in SPECIAL_TOKENS]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_ids
        self.is_special = _flags(token in SPECIAL_TOKENS for token in tokens)
        self.is_continuation = _flags(token.startswith(CONTINUATION) for token in tokens)
        unused = _flags(token.startswith("[unused") for token in tokens)
        self.replacement_ids = np.flatnonzero(~self.is_special & ~unused).astype(np.uint32)
        self.library = self._build_library()
        self.digest = self._digest()

    @property
    def lowercase(self) -> bool:
        return self.normalization.lowercase

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The library's ids of each text, without [CLS] and [SEP]; `fast_wordpiece` equals them."""
        return [text.ids for text in self.library.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: tokens joined to words, including special tokens."""
        return self.library.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(
        self,
        folder: str | AnyPath,
        *,
        max_seq_length: int | None = None,
        has_segments: bool = True,
    ) -> None:
        """Write the folder, finally tokenizer.json: without it a folder is not a tokenizer.

        The two files for `transformers` get the maximum length, if it is known, and whether the
        model has segments. In a folder with the same tokenizer, only these are brought up to date.
        Raises InputError for a folder that holds anything else.
        """
        folder = path_of(folder)
        names = {name for name in names_in(folder) if not name.startswith(".")}
        is_new = TOKENIZER_JSON not in names and names <= set(TOKENIZER_FILES)
        if not is_new:
            self._check_same(folder)
        files = transformers_files(
            SPECIAL_TOKENS,
            asdict(self.normalization),
            max_seq_length=max_seq_length,
            has_segments=has_segments,
        )
        if is_new:
            self._write(folder, files)
        elif any(_bytes_of(folder / name) != text.encode() for name, text in files.items()):
            _update(folder, files)

    def _write(self, folder: AnyPath, files: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        texts = {VOCAB_TXT: "".join(f"{token}\n" for token in self.tokens)}
        if self.punkt is not None:
            texts[PUNKT_JSON] = canonical_json(self.punkt) + "\n"
        else:
            (folder / PUNKT_JSON).unlink(missing_ok=True)
        # Not the library's own save: it reports a full disk as a bare Exception.
        texts |= {**files, TOKENIZER_JSON: self.library.to_str(pretty=True)}
        contents = {name: text.encode() for name, text in texts.items()}
        sums, last = sums_of(contents), contents.pop(TOKENIZER_JSON)
        for name, data in {**contents, SUMS: sums, TOKENIZER_JSON: last}.items():
            _write_whole(folder / name, data)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.tokens, self.normalization, self.punkt)

    def _build_library(self) -> tokenizers.Tokenizer:
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        library = tokenizers.Tokenizer(
            models.WordPiece(
                vocabulary,
                unk_token="[UNK]",
                max_input_chars_per_word=MAX_WORD_CHARACTERS,
                continuing_subword_prefix=CONTINUATION,
            )
        )
        library.normalizer = normalizers.BertNormalizer(**asdict(self.normalization))
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.post_processor = processors.BertProcessing(
            ("[SEP]", self.sep_id), ("[CLS]", self.cls_id)
        )
        library.decoder = decoders.WordPiece(prefix=CONTINUATION)
        library.add_special_tokens(list(SPECIAL_TOKENS))
        library.encode_special_tokens = True
        return library

    def _digest(self) -> str:
        parts = [self.tokens, asdict(self.normalization), self.punkt]
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()

    def _check_same(self, folder: AnyPath) -> None:
        digest = load_tokenizer(folder).digest
        if digest != self.digest:
            raise InputError(
                f"{folder} already holds another tokenizer (digest {digest[:12]}, this one has "
                f"{self.digest[:12]}); choose another folder or remove it."
            )


def load_tokenizer(folder: str | AnyPath) -> Tokenizer:
    """Load what `Tokenizer.save` wrote; `vocab.txt` is for other tools and is not read.

    Raises InputError if the folder is missing or does not hold a BERT tokenizer.
    """
    folder = path_of(folder)
    if not (folder / TOKENIZER_JSON).is_file():
        found = sorted(names_in(folder))[:5] if folder.is_dir() else None
        what = "no such folder" if found is None else f"it has {', '.join(found) or 'no files'}"
        inner = folder / "tokenizer"  # of a data set or a run
        has_inner = (inner / TOKENIZER_JSON).is_file()
        fix = f"give {inner}" if has_inner else "make one with `clozeline tokenizer`"
        raise InputError(
            f"{folder} is not a tokenizer folder (it has no {TOKENIZER_JSON}: {what}); {fix}."
        )
    check_sums(folder)
    tokens, normalization = read_tokenizer_json(folder / TOKENIZER_JSON)
    punkt = folder / PUNKT_JSON
    parameters = _read_json_object(punkt) if punkt.exists() else None
    return named_tokenizer(folder, tokens, normalization, parameters)


def adopt_vocabulary(
    path: str | AnyPath, *, cased: bool, punkt: PunktJson, strip_accents: bool | None = None
) -> Tokenizer:
    """A tokenizer from a vocab.txt (one token per line) or a tokenizer.json (named *.json).

    By default accents are stripped as the tokenizer.json says, or unless `cased`. Raises InputError
    if the file is missing, is not for BERT, or does not agree with the flags.
    """
    path = path_of(path)
    if path.suffix != ".json":
        normalization = normalization_of(cased=cased, strip_accents=strip_accents)
        return named_tokenizer(path, read_vocab_txt(path), normalization, punkt)
    tokens, normalization = read_tokenizer_json(path)
    if normalization.lowercase == cased:
        found, fix = ("uncased", "drop") if normalization.lowercase else ("cased", "add")
        raise InputError(f"{path} is {found}; {fix} --cased.")
    if strip_accents not in (None, normalization.strip_accents):
        raise InputError(f"{path} has strip_accents {not strip_accents}; drop the option.")
    return named_tokenizer(path, tokens, normalization, punkt)


def normalization_of(*, cased: bool, strip_accents: bool | None) -> Normalization:
    """The flags of a vocabulary; by default accents are stripped unless it is cased."""
    strip = not cased if strip_accents is None else strip_accents
    return Normalization(strip_accents=strip, lowercase=not cased)


def named_tokenizer(
    origin: str | AnyPath, tokens: list[str], normalization: Normalization, punkt: PunktJson
) -> Tokenizer:
    """A tokenizer; its errors name the origin of the vocabulary."""
    try:
        return Tokenizer(tokens, normalization, punkt)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from error


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
    if all(token in SPECIAL_TOKENS or token.startswith("[unused") for token in tokens):
        raise InputError(f"no words: all {len(tokens)} tokens are special; give more text.")


def read_vocab_txt(path: AnyPath) -> list[str]:
    """The lines of a vocab.txt, in order; `str.splitlines` would also split at U+2028."""
    lines = _read_text(path).removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def read_tokenizer_json(path: AnyPath) -> tuple[list[str], Normalization]:
    """The tokens and the normalizer's flags. Padding, truncation and templates are ignored.

    Raises InputError for anything but BERT's WordPiece.
    """
    spec = _read_json_object(path)
    parts = {part: _part(spec, part) for part in ("normalizer", "pre_tokenizer", "model")}
    parts["model"] = {"type": "WordPiece", **parts["model"]}  # files from 2020 have no type
    for part, setting, wanted in BERT_SETTINGS:
        if parts[part].get(setting) != wanted:
            raise InputError(
                f"{path} is not a BERT tokenizer: {part} {setting} is "
                f"{parts[part].get(setting)!r}, not {wanted!r}; give a vocab.txt, or a "
                "tokenizer.json of BERT's."
            )
    vocabulary = _part(parts["model"], "vocab")
    _check_ids(path, vocabulary)
    _check_added_tokens(path, spec.get("added_tokens") or [], vocabulary)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    return tokens, _read_normalization(path, parts["normalizer"])


def _update(folder: AnyPath, files: dict[str, str]) -> None:
    """Replace files of a whole folder; a kill leaves it without sums, which is accepted."""
    (folder / SUMS).unlink(missing_ok=True)
    for name, text in files.items():
        _write_whole(folder / name, text.encode())
    names = [name for name in TOKENIZER_FILES if name != SUMS and (folder / name).exists()]
    _write_whole(folder / SUMS, sums_of({name: (folder / name).read_bytes() for name in names}))


def _write_whole(path: AnyPath, data: bytes) -> None:
    with whole_file(path) as file:
        file.write(data)


def _bytes_of(path: AnyPath) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def canonical_json(value: Any) -> str:
    """Equal values give equal text: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


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


def _check_added_tokens(path: AnyPath, added: Any, vocabulary: dict[str, int]) -> None:
    if not isinstance(added, list):
        raise InputError(f"{path}: added_tokens is not a list; give the vocab.txt instead.")
    for token in added:
        spec = token if isinstance(token, dict) else {}
        content, i = spec.get("content"), spec.get("id")
        if content not in SPECIAL_TOKENS or vocabulary.get(content) != i:
            raise InputError(
                f"{path} adds the token {content!r} (id {i}), but only {' '.join(SPECIAL_TOKENS)} "
                "may be added; remove it, or give a vocab.txt that contains it."
            )


def _read_normalization(path: AnyPath, spec: dict[str, Any]) -> Normalization:
    flags = {name: spec.get(name) for name in Normalization.__dataclass_fields__}
    if flags["strip_accents"] is None:  # the library then strips accents if it lower-cases
        flags["strip_accents"] = flags["lowercase"]
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{path}: normalizer {name} is {flag!r}; it must be true or false.")
    return Normalization(**flags)  # type: ignore[arg-type]


def _read_text(path: AnyPath) -> str:
    if not path.is_file():
        found = "it is a folder" if path.is_dir() else "no such file"
        raise InputError(f"cannot read {path}: {found}; give a vocab.txt or a tokenizer.json.")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first.") from error


def _read_json_object(path: AnyPath) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); replace it.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a JSON {type(value).__name__}, not an object; replace it.")
    return value


def _part(spec: dict[str, Any], name: str) -> dict[str, Any]:
    part = spec.get(name)
    return part if isinstance(part, dict) else {}


def _flags(values: Iterable[bool]) -> NDArray[np.bool_]:
    return np.fromiter(values, np.bool_)
