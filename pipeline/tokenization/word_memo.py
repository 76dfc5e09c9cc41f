"""Ids of `tokenizers` for models that are not WordPiece, each word encoded once.

    ["No, no."]  ->  [No][,][ no][.]  byte-level BPE      [No,][ no.]  Metaspace (Unigram)

**Where a cut is exact.** The library normalizes, then splits a text into pre-tokens, then encodes
each by itself. So a text may be cut where a pre-token ends, whatever stands further left or right:

- before a space that does not follow whitespace. Byte-level BPE splits with GPT-2's pattern, in
  which a space can only begin a pre-token or be in a run of whitespace; Metaspace begins one at
  every space;
- in byte-level BPE, between an ASCII letter or digit and an ASCII mark, since no pre-token has
  both. But after an apostrophe only the library knows whether it is that of "it's".

No Unicode normalization form joins a character with a space, a letter or a mark of ASCII that
follows it, or moves a combining mark across one.

Other normalizers and splits are not known, and neither are sentences that hold an added token which
a cut would break: they stay whole. If the library searches for such a token after normalization,
other text can become it: only NFC is known.
"""

import json
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Offsets, offsets_of, text_slabs
from clozeline.pipeline.tokenization.tokenizer_spec import TokenizerSpec

Ids = NDArray[np.uint32]

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
FROM_OTHERS = "K;`"  # what NFC can turn a character beyond ASCII into, of ASCII
WIDE_BLANKS = [char.encode() for char in map(chr, range(0x80, 0x3001)) if char.isspace()]
AFTER_BLANK = re.compile(b"(?:" + b"|".join(WIDE_BLANKS) + b") ")
SPACE, BLANK, ALNUM, MARK, APOSTROPHE, OTHER = range(6)  # kinds of byte; OTHER: not ASCII
KIND_OF = np.full(256, BLANK, np.uint8)
KIND_OF[list(string.punctuation.encode())] = MARK
KIND_OF[list((string.ascii_letters + string.digits).encode())] = ALNUM
KIND_OF[[ord(" "), ord("'")]] = SPACE, APOSTROPHE
KIND_OF[0x80:] = OTHER
KINDS = KIND_OF.tobytes()
SLAB_CHARACTERS = 1 << 20  # cut at once: the working set stays in the processor's cache
ENTRY_BYTES = 150  # of a word in the memo, besides its text and ids


@dataclass(frozen=True)
class Cuts:
    """Where the sentences of a tokenizer may be cut."""

    at_marks: bool  #: also between ASCII letters and marks
    unbroken: tuple[str, ...] = ()  #: sentences that hold one of these are not cut


class WordMemo:
    """Encodes sentences word by word; remembers about `max_bytes` of words, which affects nothing.

    A full memo is cleared, which is cheaper than tracking which words are in use.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], list[list[int]]],
        cuts: Cuts,
        *,
        max_bytes: int = 128 << 20,
    ) -> None:
        self._encode = encode
        self._cuts = cuts
        self._max_bytes = max_bytes
        self._ids: dict[str, bytes] = {}
        self._size = 0

    def encode(self, sentences: Sequence[str]) -> tuple[Ids, Offsets]:
        """As `SentenceEncoder.encode`."""
        parts = [self._encode_slab(slab) for slab in text_slabs(sentences, SLAB_CHARACTERS)]
        ids, lengths = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_slab(self, sentences: Sequence[str]) -> tuple[Ids, Offsets]:
        words, bounds = cut_words(sentences, self._cuts)
        coded = words.dictionary_encode()
        distinct = coded.dictionary.to_pylist()
        self._learn(distinct)
        known = pa.array([self._ids[word] for word in distinct], pa.large_binary())
        _, ends, data = known.take(coded.indices).buffers()
        offsets = np.frombuffer(ends, np.int64)[: len(words) + 1] // np.dtype(np.uint32).itemsize
        return np.frombuffer(data, np.uint32, offsets[-1]), np.diff(offsets[bounds])

    def _learn(self, words: list[str]) -> None:
        if self._size > self._max_bytes:
            self._ids, self._size = {}, 0
        new = [word for word in words if word not in self._ids]
        for word, ids in zip(new, self._encode(new), strict=True):
            self._ids[word] = np.array(ids, np.uint32).tobytes()
            self._size += ENTRY_BYTES + 2 * len(word) + 4 * len(ids)


def find_cuts(spec: TokenizerSpec) -> Cuts | None:
    """Where sentences may be cut; None where nothing is known of the tokenizer's steps."""
    values = json.loads(spec.library().to_str())  # in full: a file may leave out what is usual
    forms = {part["type"] for part in _parts(values.get("normalizer"), "normalizers")}
    if not forms.issubset(FORMS):
        return None
    match [(part["type"], part) for part in _parts(values["pre_tokenizer"], "pretokenizers")]:
        case [("ByteLevel", part)]:
            is_known, cuts = part["use_regex"] and not part["add_prefix_space"], Cuts(True)
        case [("Metaspace", part)] | [("WhitespaceSplit", _), ("Metaspace", part)]:
            is_known = part["replacement"] == "\u2581" and part.get("split", True)
            cuts = Cuts(False)
        case _:
            return None
    added = [token for token in values["added_tokens"] if not token["special"]]
    broken = [token for token in added if _breaks(token, cuts)]
    if not is_known or any(t["normalized"] and not t["content"].isascii() for t in added):
        return None
    if any(token["normalized"] and _others_become(token["content"], forms) for token in broken):
        return None
    return Cuts(cuts.at_marks, tuple(token["content"] for token in broken))


def _parts(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a sequence, of a single step, or of none."""
    if step is None:
        return []
    return step[name] if step["type"] == "Sequence" else [step]


def _others_become(content: str, forms: set[str]) -> bool:
    """Whether normalization can make this text of another: NFKC turns wide letters into "a b"."""
    return bool(forms) and (forms != {"NFC"} or any(char in content for char in FROM_OTHERS))


def _breaks(token: dict[str, Any], cuts: Cuts) -> bool:
    """Whether a cut may fall inside an added token, or on the spaces that it takes."""
    takes_more = token["lstrip"] or token["rstrip"] or token["single_word"]
    return takes_more or len(cut_words([token["content"]], cuts)[0]) > 1


def cut_words(sentences: Sequence[str], cuts: Cuts) -> tuple[pa.LargeStringArray, Offsets]:
    """The words of S sentences, with all their bytes, and the offsets of sentences, int64 [S + 1].

        ["No, no.", "x"], at_marks  ->  [No][,][ no][.][x],  [0 4 5]

    Raises UnicodeEncodeError for a lone surrogate.
    """
    encoded = [sentence.encode() for sentence in sentences]
    edges = offsets_of(list(map(len, encoded)))
    raw = b"".join(encoded)
    kinds = np.frombuffer(raw.translate(KINDS), np.uint8)
    begins = np.zeros(len(raw) + 1, np.bool_)
    left, right, inside = kinds[:-1], kinds[1:], begins[1:-1]
    inside[:] = (right == SPACE) & (left > BLANK)
    for blank in AFTER_BLANK.finditer(raw):
        begins[blank.end() - 1] = False
    if cuts.at_marks:
        is_mark = (right == MARK) | (right == APOSTROPHE)
        inside |= (left == ALNUM) & is_mark | (left == MARK) & (right == ALNUM)
    for text in cuts.unbroken:
        for row in [row for row, sentence in enumerate(sentences) if text in sentence]:
            begins[edges[row] : edges[row + 1]] = False
    begins[edges] = True
    begin = np.flatnonzero(begins)
    words = pa.LargeStringArray.from_buffers(len(begin) - 1, pa.py_buffer(begin), pa.py_buffer(raw))
    return words, np.searchsorted(begin, edges)
