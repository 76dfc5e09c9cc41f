"""Sentences to ids in columns: the same ids as `Tokenizer.encode_batch`, several times faster.

Words repeat, so each distinct word is encoded once and memoized; the ids are then gathered:

    ["No, no."]  ->  words  [no][,][no][.]  ->  distinct  [no][,][.]  ->  ids  no , no .

**Where a split is exact.** A text may be split between two characters if the parts, encoded one by
one, give the ids of the whole. That is so at a space and on both sides of every ASCII punctuation
mark and of the commonest others, the dashes, quotation marks and ellipsis of print:

- every step of BertNormalizer maps characters one by one, except NFD's reordering, which permutes
  combining marks between two starters and never moves one across a starter; spaces and these marks
  are starters, and no step changes them;
- BertPreTokenizer ends a word at every space and makes every punctuation mark a word;
- WordPiece sees one word at a time.

It is *not* so at other whitespace (clean_text treats it depending on flags), nor between letters
and other characters (a combining mark, Chinese); text without a space or one of these marks goes
to the library as a whole. ASCII capitals may be lower-cased first if the library would do so, for
the same reason: it maps one character at a time.

Models other than WordPiece are cut as `cut_words.py` says, and most of their words encoded by
`plain_words.py`; where no cut is known, the library encodes whole sentences.
"""

import re
import string
import sys
from collections.abc import Iterable
from itertools import chain, compress, repeat
from operator import not_

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import WhitespaceSplit

from clozeline.pipeline.common.ragged import Offsets, offsets_of, text_slabs
from clozeline.pipeline.sentences.spans import Sentences
from clozeline.pipeline.tokenization.cut_words import cut_words, find_cuts
from clozeline.pipeline.tokenization.plain_words import PlainWords
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import MAX_WORD_CHARACTERS, Normalization

Ids = NDArray[np.uint32]

SPACE, INSIDE, PUNCTUATION = 0, 1, 2  # kinds of byte; bytes of longer characters are INSIDE
WORDS_PER_CALL = 256  # new words per call of the library
SLAB_CHARACTERS = 1 << 20  # split at once: the working set stays in the processor's cache
ENTRY_BYTES = 150  # memo overhead per word
UNKNOWN = -1  # number of a word that the memo does not have

KIND_OF = np.full(256, INSIDE, np.uint8)
KIND_OF[list(string.punctuation.encode())] = PUNCTUATION
KIND_OF[ord(" ")] = SPACE
KINDS = KIND_OF.tobytes()
# Bytes of U+2013, 2014, 2018, 2019, 201C, 201D and 2026, which begin with E2 80.
IS_LAST_OF_MARK = np.isin(np.arange(256), [0x93, 0x94, 0x98, 0x99, 0x9C, 0x9D, 0xA6])
PLAIN = re.compile("[!-~]+")  # WordPiece's words that only its model has to see
UNCHANGED = bytes(range(256))
LOWERED = UNCHANGED.lower()  # bytes.lower changes only A-Z


class ColumnTokenizer:
    """Encodes batches of sentences; use one per worker, since it memoizes the words it has seen.

    The memo takes about `memo_bytes` and does not affect results. A call needs about 10 bytes of
    memory per byte of text; it is fastest from about 1 MB of text per call.
    """

    def __init__(self, tokenizer: Tokenizer, *, memo_bytes: int = 128 << 20) -> None:
        self.tokenizer = tokenizer
        self._library = tokenizer.library
        self._cuts = find_cuts(tokenizer.spec) if tokenizer.spec else None
        self._is_plain = (self._cuts.plain if self._cuts else PLAIN).fullmatch
        self._model = tokenizers.Tokenizer(tokenizer.library.model)  # without normalizer
        self._model.pre_tokenizer = WhitespaceSplit()
        self._is_continuation = tokenizer.is_continuation
        self._plain_words = PlainWords(tokenizer, self._cuts) if self._cuts else None
        flags = tokenizer.normalization
        lowers = isinstance(flags, Normalization) and flags.lowercase
        self._letters = LOWERED if lowers else UNCHANGED
        self._memo = Memo(memo_bytes)

    def encode(self, sentences: list[str] | Sentences) -> tuple[Ids, Offsets]:
        """The ids of S sentences, concatenated, and the number of ids of each.

            ["Hello, world", "", "unaffable"]  ->  [7592 1010 2088 14477 20961 3468],  [3 0 3]

        Raises UnicodeEncodeError for a lone surrogate in a string, as the library does.
        """
        if self.tokenizer.spec:
            listed = sentences.to_list() if isinstance(sentences, Sentences) else sentences
            if self._cuts is None:
                return self._encode_by_library(listed)
            return self._ids_of(
                cut_words(slab, self._cuts) for slab in text_slabs(listed, SLAB_CHARACTERS)
            )
        spans = sentences if isinstance(sentences, Sentences) else Sentences.of(sentences)
        return self._ids_of(split_words(slab, letters=self._letters) for slab in spans.slabs())

    def _ids_of(self, split: Iterable[tuple[pa.LargeStringArray, Offsets]]) -> tuple[Ids, Offsets]:
        """The ids of sentences that are split into words, slab by slab."""
        slabs = list(split)
        # One dictionary for all slabs.
        words = pa.concat_arrays([words for words, _ in slabs]).dictionary_encode()
        ids_of_words = self._ids_of_words(words.dictionary.to_pylist())
        ids, lengths, start = [], [], 0
        for slab, bounds in slabs:
            of_word = ids_of_words.take(words.indices.slice(start, len(slab)))  # a list per word
            ids.append(of_word.values.to_numpy())
            lengths.append(np.diff(of_word.offsets.to_numpy()[bounds]))
            start += len(slab)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_by_library(self, sentences: list[str]) -> tuple[Ids, Offsets]:
        rows = self.tokenizer.encode_batch(sentences)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths

    def _ids_of_words(self, words: list[str]) -> pa.LargeListArray:
        """The ids of each of the distinct words, memoized or encoded now: list<uint32>."""
        self._memo.make_room()
        numbers = self._memo.numbers_of(words)
        unknown = np.flatnonzero(numbers == UNKNOWN)
        new = [words[row] for row in unknown.tolist()]
        self._encode_new(new)
        numbers[unknown] = self._memo.numbers_of(new)
        return self._memo.ids_of(numbers)

    def _encode_new(self, words: list[str]) -> None:
        is_plain = [match is not None for match in map(self._is_plain, words)]
        plain, others = list(compress(words, is_plain)), list(compress(words, map(not_, is_plain)))
        if self._plain_words:
            ids, left = self._plain_words.encode(plain)
            known = ids.take(np.flatnonzero(~left))
            self._memo.add(list(compress(plain, ~left)), known.values, known.offsets[:-1])
            plain, others = [], others + list(compress(plain, left))
        for listed, encode in ((plain, self._encode_plain), (others, self._encode_other)):
            for start in range(0, len(listed), WORDS_PER_CALL):
                batch = listed[start : start + WORDS_PER_CALL]
                self._memo.add(batch, *encode(batch))

    def _encode_plain(self, words: list[str]) -> tuple[Ids, Offsets]:
        """The ids of WordPiece's words of printable ASCII, and the index of each word's first id.

        Each stays one word, so many can be joined into one text: a word begins at every token that
        is not a continuation. Four times as fast as `_encode_other`.
        """
        text = " ".join(word[: MAX_WORD_CHARACTERS + 1] for word in words)  # longer is [UNK]
        [encoding] = self._model.encode_batch_fast([text], add_special_tokens=False)
        ids = np.array(encoding.ids, np.uint32)
        return ids, np.flatnonzero(~self._is_continuation[ids])

    def _encode_other(self, words: list[str]) -> tuple[Ids, Offsets]:
        """As `_encode_plain`, but for any text, which may become any number of words, or none."""
        if self._cuts:
            ids, lengths = self._encode_by_library(words)
            return ids, offsets_of(lengths)[:-1]
        encoding = self._library.encode(words, is_pretokenized=True, add_special_tokens=False)
        origins = np.array(encoding.word_ids, np.int64)
        return np.array(encoding.ids, np.uint32), np.searchsorted(origins, np.arange(len(words)))


class Memo:
    """Words and their ids. Words are numbered, so that the ids of many are gathered at once.

    It may exceed `max_bytes` by what one call adds; `make_room` then clears it, which is cheaper
    than tracking which words are in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ids = bytearray()  # uint32, of all words
        self._ends = bytearray(8)  # int64: the end of each word in `_ids`, after a leading 0
        self._word_bytes = 0

    def numbers_of(self, words: list[str]) -> NDArray[np.int64]:
        """The numbers of the words, int64 [W]; UNKNOWN for a new one."""
        return np.fromiter(map(self._numbers.get, words, repeat(UNKNOWN)), np.int64, len(words))

    def make_room(self) -> None:
        """Clear the memo if it is over its limit."""
        if self._word_bytes + len(self._ids) > self._max_bytes:
            self._clear()

    def add(self, words: list[str], ids: Ids, starts: Offsets) -> None:
        """Add new words, their ids, and the index of each word's first id."""
        ends = len(self._ids) // ids.itemsize + np.append(starts, len(ids))[1:]
        known = len(self._numbers)
        self._numbers.update(zip(words, range(known, known + len(words)), strict=True))
        self._ids += ids.tobytes()
        self._ends += ends.tobytes()
        self._word_bytes += sum(map(sys.getsizeof, words)) + ENTRY_BYTES * len(words)

    def ids_of(self, numbers: NDArray[np.int64]) -> pa.LargeListArray:
        """The ids of each of the numbered words: list<uint32>."""
        ends, ids = np.frombuffer(self._ends, np.int64), np.frombuffer(self._ids, np.uint32)
        return pa.LargeListArray.from_arrays(ends, ids).take(pa.array(numbers))


def split_words(sentences: Sentences, *, letters: bytes) -> tuple[pa.LargeStringArray, Offsets]:
    """The words and punctuation marks of S sentences, and the offsets of sentences, int64 [S + 1].

        [No, no.][x]  ->  [No][,][no][.][x],  [0 4 5]

    Spaces are removed; every other byte is kept, mapped by `letters`.
    """
    kinds = np.frombuffer(sentences.data.translate(KINDS), np.uint8)
    edges = np.ones(len(kinds) + 1, np.bool_)  # between bytes, and at both ends
    edges[1:-1] = (kinds[1:] != kinds[:-1]) | (kinds[1:] == PUNCTUATION)
    marks = _long_marks(np.frombuffer(sentences.data, np.uint8))
    for places in (sentences.starts, marks, marks + 3):
        edges[places] = True
    in_word = kinds != SPACE
    begin, end = (np.flatnonzero(of_side & in_word) for of_side in (edges[:-1], edges[1:]))
    offsets = offsets_of(end + 1 - begin)

    text = sentences.data.translate(letters, b" ")
    words = pa.LargeStringArray.from_buffers(len(begin), pa.py_buffer(offsets), pa.py_buffer(text))
    return words, np.append(np.searchsorted(begin, sentences.starts), len(begin))


def _long_marks(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where each of the longer punctuation marks begins: int64 [M]."""
    found: NDArray[np.int64] = np.flatnonzero(data[:-2] == 0xE2)
    is_mark = (data[found + 1] == 0x80) & IS_LAST_OF_MARK[data[found + 2]]
    return np.compress(is_mark, found)
