"""The tokenizer folder: a BERT WordPiece vocabulary, its normalizer flags and Punkt's parameters.

    work/tokenizer/   vocab.txt   punkt.json   tokenizer.json
                      tokenizer_config.json   special_tokens_map.json

A tokenizer consists of a list of tokens (id = index in the list), four normalizer flags and,
optionally, the sentence splitter's parameters. The library's tokenizer is always built from these
alone, whatever file a vocabulary comes from, and the digest covers exactly these. A tokenizer.json
of another kind, such as ModernBERT's, takes the place of the flags as a whole (`vocabulary.py`).

Text never becomes a special token. By default the library turns text that spells "[MASK]" into
one, and it saves this setting neither in `tokenizer.json` nor in a pickle; here it is set in the
only place where the library's tokenizer is built.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import SUMS, check_sums, sums_of
from clozeline.pipeline.common.paths import (
    AnyPath,
    GivenPath,
    is_file,
    make_folder,
    names_in,
    path_of,
    read_file,
    write_together,
)
from clozeline.pipeline.tokenization.read_vocabulary import read_json_object, read_tokenizer_json
from clozeline.pipeline.tokenization.vocabulary import (
    FLAGS,
    SPECIAL_NAMES,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    Normalization,
    TokenizerSpec,
    canonical_json,
    check_tokens,
    join_bytes,
    shown_token,
    token_texts,
    wordpiece_library,
)

ANY_TOKENIZER = "PreTrainedTokenizerFast"  # of `transformers`: does what tokenizer.json says
PunktJson = dict[str, Any] | None  # see PunktData.to_json
VOCAB_TXT, PUNKT_JSON, TOKENIZER_JSON = "vocab.txt", "punkt.json", "tokenizer.json"
#: In the order in which they appear: without the last, a folder is not a tokenizer.
TOKENIZER_FILES = (
    *(VOCAB_TXT, PUNKT_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP),
    *(SUMS, TOKENIZER_JSON),
)


class Tokenizer:
    """A tokenizer and the properties of its vocabulary of V tokens.

        tokens           list[str] [V]    id -> token
        normalization    Normalization of a WordPiece, or the TokenizerSpec of another model
        special_tokens   tuple[str, ...]  for [PAD] [UNK] [CLS] [SEP] [MASK], in this order
        is_special       bool      [V]    one of special_tokens
        is_reserved      bool      [V]    text never becomes it: special, or added as such
        is_continuation  bool      [V]    continues a word: "##...", or without a word mark
        replacement_ids  uint32    [R]    for a random token: no special, no "[unused..."
        punkt            dict | None      Punkt's parameters, as read from JSON
        digest           str              sha256, hex, of tokens, flags and Punkt's parameters
        library          tokenizers.Tokenizer
        spec             the TokenizerSpec, or None
        mask_token       how a user writes a mask, such as "[MASK]" or "<mask>"
        knows_words      whether tokens say where a word begins, which whole-word masking needs
        needs_space      whether the first token of a text depends on a space before it
        texts            list[str] [V]    what each token adds to a text, see `token_texts`

        >>> tokenizer = load_tokenizer("work/tokenizer")
        >>> len(tokenizer), tokenizer.decode(tokenizer.encode("The North of it."))
        (400, 'the north of it .')

    Raises InputError for a vocabulary that cannot be BERT's. Unpickling builds it anew.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        normalization: Normalization | TokenizerSpec,
        punkt: dict[str, Any] | None = None,
    ) -> None:
        self.spec = normalization if isinstance(normalization, TokenizerSpec) else None
        if isinstance(normalization, Normalization):
            check_tokens(tokens)
            self.library = wordpiece_library(tokens, normalization)
        else:
            self.library = normalization.library()
        self.tokens = list(tokens)
        self.vocab_size = len(tokens)
        self.normalization = normalization
        self.punkt: dict[str, Any] | None = json.loads(canonical_json(punkt))
        self.special_tokens = normalization.special_tokens
        self.mask_token = self.special_tokens[-1]
        self.needs_space = normalization.word_mark is not None
        self.knows_words = self.needs_space or bool(normalization.continuation)
        self.texts = token_texts(tokens, normalization)
        self.special_ids = [self.tokens.index(token) for token in self.special_tokens]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.is_special = np.array([token in self.special_tokens for token in tokens])
        self.is_reserved = np.array([token in normalization.reserved for token in tokens])
        self._reserved_ids = frozenset(np.flatnonzero(self.is_reserved).tolist())
        self.is_continuation = np.array([not text.startswith(" ") for text in self.texts])
        is_unused = np.array([token.startswith("[unused") for token in tokens])
        self.replacement_ids = np.flatnonzero(~self.is_reserved & ~is_unused).astype(np.uint32)
        if not len(self.replacement_ids):
            raise InputError(f"no words: all {len(tokens)} tokens are special; give more text.")
        self.digest = self._digest()

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size:,} tokens, digest {self.digest[:12]})"

    def __call__(self, texts: str | Iterable[str]) -> dict[str, list[Any]]:
        """The inputs of a model, as `transformers` names and nests them: a list for each text.

        `input_ids` are those of `encode`, `token_type_ids` 0, `attention_mask` 1: no padding. One
        text gives the numbers themselves.
        """
        if isinstance(texts, str):
            return {name: rows[0] for name, rows in self([texts]).items()}
        rows = [self.encode(text) for text in texts]
        return {
            "input_ids": rows,
            "token_type_ids": [[0] * len(row) for row in rows],
            "attention_mask": [[1] * len(row) for row in rows],
        }

    def encode(self, text: str) -> list[int]:
        """The ids of [CLS], the text and [SEP]."""
        [ids] = self.encode_batch([text])
        return [self.cls_id, *ids, self.sep_id]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens; what the normalizer drops is lost."""
        special = {*self.special_ids} - {self.unk_id, self.mask_id}
        text = join_bytes("".join(self.texts[i] for i in ids if i not in special))
        return text.removeprefix(" ")

    @cached_property
    def shown_tokens(self) -> list[str]:
        """The tokens as people read them, [V]: "##..." continues a word, whatever the model."""
        return list(map(shown_token, self.texts))

    def after_space(self, text: str) -> str:
        """The text as it is within a document: some models' first token depends on a space."""
        return f" {text}" if self.needs_space else text

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The library's ids of each text, without [CLS] and [SEP]; as in `encoder`."""
        # The fast form leaves out offsets.
        found = self.library.encode_batch_fast(texts, add_special_tokens=False)
        rows = [text.ids for text in found]
        for row in rows if self.spec else ():
            # Text that spells one is unknown where the model finds no other pieces.
            if not self._reserved_ids.isdisjoint(row):
                row[:] = [self.unk_id if i in self._reserved_ids else i for i in row]
        return rows

    def save(
        self,
        folder: str | AnyPath,
        *,
        max_seq_length: int | None = None,
        has_segments: bool = True,
        cuts_start: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Write the folder, all of it or, where that fails, nothing.

        The two files for `transformers` get the maximum length, if it is known, whether the model
        has segments, and whether longer texts lose their start instead of their end. A folder with
        the same tokenizer is brought up to date. Raises InputError for one that holds anything
        else, unless `overwrite` replaces it.
        """
        folder = path_of(folder)
        contents = self._files(max_seq_length, has_segments, cuts_start)
        contents[SUMS] = sums_of(contents)
        names = {name for name in names_in(folder) if not name.startswith(".")}
        is_used = TOKENIZER_JSON in names or not names <= set(TOKENIZER_FILES)
        if is_used and not overwrite and (found := load_tokenizer(folder).digest) != self.digest:
            raise InputError(
                f"{folder} already holds another tokenizer (digest {found[:12]}, this one has "
                f"{self.digest[:12]}); choose another folder or remove it."
            )
        known = {name: read_file(folder / name) for name in names.intersection(TOKENIZER_FILES)}
        ordered = {name: contents[name] for name in TOKENIZER_FILES if name in contents}
        changed = {name: data for name, data in ordered.items() if data != known.get(name)}
        # A kill leaves no tokenizer.json, or a finished folder without sums, which is accepted.
        gone = known.keys() - (contents.keys() - {SUMS, TOKENIZER_JSON}.intersection(changed))
        first_to_last = sorted(gone, key=TOKENIZER_FILES.index, reverse=True)
        make_folder(folder)
        write_together(folder, changed, removed=first_to_last)

    def _files(
        self, max_seq_length: int | None, has_segments: bool, cuts_start: bool
    ) -> dict[str, bytes]:
        """The content of each file but the sums.

        In `transformers`, text that spells [MASK] becomes the token, unless the tokenizer is loaded
        with `split_special_tokens`.
        """
        flags = self.normalization
        is_bert = isinstance(flags, Normalization) and flags.clean_text
        special = dict(zip(SPECIAL_NAMES, self.special_tokens, strict=True))
        config = {
            "tokenizer_class": "BertTokenizer" if is_bert else ANY_TOKENIZER,
            "model_max_length": max_seq_length,
            "truncation_side": "left" if cuts_start else None,
            "clean_up_tokenization_spaces": True,
            **{option: getattr(flags, name) for name, option in FLAGS.items() if is_bert},
            **special,
            # Without segments, the model gets no token_type_ids.
            "model_input_names": None if has_segments else ["input_ids", "attention_mask"],
        }
        given = {name: value for name, value in config.items() if value is not None}
        texts = {
            VOCAB_TXT: None if self.spec else "".join(f"{token}\n" for token in self.tokens),
            PUNKT_JSON: None if self.punkt is None else f"{canonical_json(self.punkt)}\n",
            TOKENIZER_CONFIG: json.dumps(given, indent=2) + "\n",
            SPECIAL_TOKENS_MAP: json.dumps(special, indent=2) + "\n",
            # Not the library's own save: it reports a full disk as a bare Exception.
            TOKENIZER_JSON: self.spec.text if self.spec else self.library.to_str(pretty=True),
        }
        return {name: text.encode() for name, text in texts.items() if text is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.tokens, self.normalization, self.punkt)

    def _digest(self) -> str:
        parts: list[Any] = [self.tokens, asdict(self.normalization), self.punkt]
        if self.spec:
            parts = [self.spec.text, self.punkt]
            if self.special_tokens != SPECIAL_TOKENS:
                parts.append(self.special_tokens)
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def load_tokenizer(folder: GivenPath) -> Tokenizer:
    """Load what `Tokenizer.save` wrote; `vocab.txt` is for other tools and is not read.

        >>> len(load_tokenizer("work/tokenizer").encode_batch(["the river"])[0]) > 1
        True

    Raises InputError if the folder is missing or does not hold a BERT tokenizer.
    """
    folder = path_of(folder)
    if not is_file(folder / TOKENIZER_JSON):
        inner = folder / "tokenizer"  # of a data set or a run
        has_inner = is_file(inner / TOKENIZER_JSON)
        fix = f"give {inner}" if has_inner else "make one with `clozeline tokenizer`"
        raise InputError(f"{folder} is not a tokenizer folder (it has no {TOKENIZER_JSON}); {fix}.")
    check_sums(folder)
    tokens, normalization = read_tokenizer_json(folder / TOKENIZER_JSON)
    punkt = folder / PUNKT_JSON
    parameters = read_json_object(punkt, "replace it") if is_file(punkt) else None
    return named_tokenizer(folder, tokens, normalization, parameters)


def named_tokenizer(
    origin: str | AnyPath,
    tokens: list[str],
    normalization: Normalization | TokenizerSpec,
    punkt: PunktJson,
) -> Tokenizer:
    """A tokenizer; its errors name the origin of the vocabulary."""
    try:
        return Tokenizer(tokens, normalization, punkt)
    except ValueError as error:  # also for a number in Punkt's parameters that is NaN
        raise InputError(f"{origin}: {error}") from error
