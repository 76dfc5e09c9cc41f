"""Sentences to ids, by the fastest way that gives exactly the ids of the library `tokenizers`.

    model                                            encoded by
    BERT's WordPiece                                 nanotoken, compiled; all sentences in one call
    byte-level BPE, Unigram with plain steps         `tokenizers`, each word once
    others; any where nanotoken cannot be loaded     `tokenizers`, sentence by sentence

nanotoken encodes one text, in which a NUL is between any two sentences. NUL is an added token of
its tokenizer, so each sentence is encoded by itself, and the NULs say where it ends.

`tokenizers` normalizes, splits a text into pre-tokens and encodes each by itself. A space that
follows no whitespace begins one, whatever is beside it: in GPT-2's pattern (Radford et al. 2019) of
byte-level BPE, and in Metaspace. No Unicode normalization form joins a space with a neighbour, or
moves a mark across it. So a sentence is cut before its spaces, and a word that was seen before is
not encoded again. Sentences with a space that follows whitespace stay whole, and all of them where
the steps are others, or an added token could reach across a cut.

    "No, no."  ->  [No,][ no.]

**Exact or not at all**: `check` compares with `tokenizers`; jobs call it for a thousandth of their
documents (`documents.py`).
"""

import json
import sys
import unicodedata
from array import array
from functools import cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import JobFailedError, one_line
from clozeline.pipeline.common.ragged import Offsets
from clozeline.pipeline.sentences.splitter import Sentences
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import TokenizerSpec

Ids = NDArray[np.uint32]

NUL = "\0"
#: The normalizers and pre-tokenizers of models whose sentences are cut.
FORMS = (None, "NFC", "NFD", "NFKC", "NFKD")
CUT_STEPS: tuple[dict[str, Any], ...] = (
    {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False},
    {"type": "Metaspace", "replacement": "\u2581", "split": True},
)
NOT_CUT = f"[{''.join(filter(str.isspace, map(chr, range(0x3001))))}] "  # in one that stays whole
MEMO_BYTES = 128 << 20  # of words, which bounds memory; ids do not depend on it
COMPILED_WORDS = 1 << 17  # that nanotoken remembers; its default leaves the processor's cache
ENTRY_BYTES = 150  # of a word in the memo, besides its text and ids


class SentenceEncoder:
    """Encodes batches of sentences; use one per worker, since it remembers words that it has seen.

    That takes up to about 130 MB and does not affect results. A call is fastest from about 100 KB
    of text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._compiled: Any = _wordpiece(tokenizer) if tokenizer.spec is None else None
        self._is_cut = bool(tokenizer.spec and _can_be_cut(tokenizer.spec))
        self._ids: dict[str, bytes] = {}  # of each word; cleared when full
        self._size = 0

    def encode(self, sentences: list[str] | Sentences) -> tuple[Ids, Offsets]:
        """The ids of S sentences, concatenated, uint32, and the number of ids of each, int64 [S].

            ["Hello, world", "", "unaffable"]  ->  [7592 1010 2088 14477 20961 3468],  [3 0 3]

        Raises UnicodeEncodeError for a lone surrogate in a string, as the library does.
        """
        spans = sentences if isinstance(sentences, Sentences) else Sentences.of(sentences)
        encode = self._encode_by_library
        if NUL.encode() not in spans.data:  # documents have none
            if self._compiled:
                encode = self._encode_compiled
            elif self._is_cut:
                encode = self._encode_words
        ids, lengths = zip(*map(encode, spans.slabs()), strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def check(self, sentences: list[str] | Sentences, ids: Ids, *, name: str) -> None:
        """Compare the ids of these sentences, concatenated, with those of `tokenizers`.

        Raises JobFailedError, which names the document and has both lists, if they differ.
        """
        listed = sentences.to_list() if isinstance(sentences, Sentences) else sentences
        wanted = list(chain.from_iterable(self.tokenizer.encode_batch(listed)))
        if (found := ids.tolist()) != wanted:
            fix = "report the document"
            if self._compiled:
                fix += ", and uninstall nanotoken to build the data set without it"
            raise JobFailedError(
                f"document {name}: its ids differ from those of `tokenizers`, so there is no data "
                f"set: {found} instead of {wanted}; {fix}."
            )

    def _encode_compiled(self, sentences: Sentences) -> tuple[Ids, Offsets]:
        text = [_separated(sentences)]
        ids, _ = self._compiled.encode_batch(text, add_special_tokens=False, parallel=False)
        if not len(sentences):
            return ids, np.zeros(0, np.int64)
        ends = np.flatnonzero(ids == self.tokenizer.vocab_size)
        lengths = np.diff(np.concatenate([[-1], ends, [len(ids)]])) - 1
        return np.delete(ids, ends), lengths

    def _encode_words(self, sentences: Sentences) -> tuple[Ids, Offsets]:
        texts = pa.array(sentences.to_list(), pa.large_string())
        cut = pc.replace_substring(texts, " ", f"{NUL} ")
        is_whole = pc.match_substring_regex(texts, NOT_CUT)
        rows = pc.split_pattern(pc.if_else(is_whole, texts, cut), NUL)
        words = rows.values.dictionary_encode()
        distinct = words.dictionary.to_pylist()
        if self._size > MEMO_BYTES:
            self._ids, self._size = {}, 0
        new = [word for word in distinct if word not in self._ids]
        for word, ids in zip(new, self.tokenizer.encode_batch(new), strict=True):
            self._ids[word] = array("I", ids).tobytes()  # of uint32
            self._size += ENTRY_BYTES + 2 * len(word) + 4 * len(ids)
        of_distinct = pa.array([self._ids[word] for word in distinct], pa.large_binary())
        _, ends, data = of_distinct.take(words.indices).buffers()
        offsets = np.frombuffer(ends, np.int64)[rows.offsets] // np.uint32().itemsize
        return np.frombuffer(data, np.uint32, offsets[-1]), np.diff(offsets)

    def _encode_by_library(self, sentences: Sentences) -> tuple[Ids, Offsets]:
        rows = self.tokenizer.encode_batch(sentences.to_list())
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths


def _can_be_cut(spec: TokenizerSpec) -> bool:
    """Whether the steps of this model are known, and no added token reaches across a cut."""
    values = json.loads(spec.library().to_str())  # in full: a file may leave out what is usual
    normalizer, step = values["normalizer"] or {}, values["pre_tokenizer"] or {}
    for token in values["added_tokens"]:
        text = unicodedata.normalize("NFKD", token["content"])  # spaces of every form
        is_after_space = token["single_word"] and text.startswith(" ")
        if not token["special"] and (token["rstrip"] or is_after_space or " " in text.lstrip()):
            return False
    is_known = any(known.items() <= step.items() for known in CUT_STEPS)
    return is_known and normalizer.get("type") in FORMS


def _separated(sentences: Sentences) -> bytes:
    """The text of the sentences with a NUL between any two, in place of a space if there is one."""
    ends = sentences.ends[:-1]
    touching = ends == sentences.starts[1:]
    cuts = [0, *ends[touching].tolist(), len(sentences.data)]
    data = bytearray(NUL.encode().join(sentences.data[a:b] for a, b in pairwise(cuts)))
    np.frombuffer(data, np.uint8)[ends + np.cumsum(touching) - touching] = 0
    return bytes(data)


def _wordpiece(tokenizer: Tokenizer) -> Any:
    """nanotoken's encoder of this tokenizer; None, with a line on stderr, where there is none."""
    values = json.loads(tokenizer.library.to_str())
    separator = {"id": tokenizer.vocab_size, "content": NUL, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    values |= {"added_tokens": [separator | flags], "post_processor": None}
    try:
        from nanotoken.nanotoken_rs import WordPieceTokenizer, set_cache_entries

        set_cache_entries(COMPILED_WORDS)
        return WordPieceTokenizer.from_json(json.dumps(values))
    except Exception as error:  # of a missing or damaged wheel, and of what it does not know
        _warn(one_line(error))
        return None


@cache  # once in a process
def _warn(reason: str) -> None:
    print(
        f"warning: nanotoken does not work here ({reason}), so `tokenizers` finds the same ids 20 "
        "times as slowly; install nanotoken where it has a wheel.",
        file=sys.stderr,
    )
