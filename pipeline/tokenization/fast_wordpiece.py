"""Sentences to ids in columns: exactly what `Tokenizer.encode_batch` gives, only faster.

Words repeat, so each distinct word is encoded once and remembered, and the rest is gathering:

    ["No, no."]  ->  words  [no][,][no][.]  ->  distinct  [no][,][.]  ->  ids  no , no .

**Where a cut is exact.** A text may be cut between two of its characters if the library gives the
parts, each on its own, the ids it gives the whole. It does at a space and on both sides of every
ASCII punctuation mark:

- every step of BertNormalizer maps characters one by one, but for the reordering of NFD, which
  permutes combining marks between two starters and never moves one across a starter; spaces and
  punctuation are starters, and none of the steps changes them;
- BertPreTokenizer ends a word at every space and makes every ASCII punctuation mark a word;
- WordPiece sees one word at a time.

It does *not* at other whitespace (what clean_text makes of it depends on flags), nor between
letters and what is not ASCII (a combining mark, Chinese); a stretch without ASCII space or
punctuation goes to the library whole. ASCII capitals may be lowered beforehand where the library
would lower them anyway, for the same reason: one character at a time.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import WhitespaceSplit

from pipeline.common.ragged import offsets_of
from pipeline.tokenization.tokenizer import MAX_WORD_CHARACTERS, Tokenizer

Ids = NDArray[np.uint32]
Offsets = NDArray[np.int64]

SPACE, INSIDE, PUNCTUATION = 0, 1, 2  # kinds of byte; bytes of longer characters are INSIDE
WORDS_PER_CALL = 256  # new words to one call of the library
SLAB_CHARACTERS = 1 << 20  # cut at once: what that takes stays in the processor's cache
ENTRY_BYTES = 150  # what the memo keeps for a word beside the word itself


def kind_of_byte(byte: int) -> int:
    if byte == 0x20:
        return SPACE
    return PUNCTUATION if 0x20 < byte < 0x7F and not chr(byte).isalnum() else INSIDE


KINDS = bytes(map(kind_of_byte, range(256)))
AS_IT_IS = bytes(range(256))
LOWERED = AS_IT_IS.lower()  # A-Z alone: bytes know no other letters


class ColumnTokenizer:
    """Encodes batches of sentences; one per worker, since it remembers the words it has seen.

    The memo holds about `memo_bytes` and never changes a result. A call needs some 10 bytes of
    memory per byte of text; from about 1 MB of text to a call it is at its full speed.
    `vocab_size` is the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, *, memo_bytes: int = 128 << 20) -> None:
        self.vocab_size = tokenizer.vocab_size
        self._library = tokenizer.library
        self._wordpiece = tokenizers.Tokenizer(tokenizer.library.model)  # and nothing else
        self._wordpiece.pre_tokenizer = WhitespaceSplit()
        self._is_continuation = tokenizer.is_continuation
        self._letters = LOWERED if tokenizer.lowercase else AS_IT_IS
        self._memo = Memo(memo_bytes)

    def encode(self, sentences: list[str]) -> tuple[Ids, Offsets]:
        """The ids of S sentences, one after the other, and the number of ids of each.

            ["Hello, world", "", "unaffable"]  ->  [7592 1010 2088 14477 20961 3468],  [3 0 3]

        A lone surrogate is no text: UnicodeEncodeError, as from the library.
        """
        slabs = [cut_words(slab, letters=self._letters) for slab in _slabs(sentences)]
        # One dictionary for all slabs.
        words = pa.concat_arrays([words for words, _ in slabs]).dictionary_encode()
        pieces = self._pieces(words.dictionary.to_pylist())
        ids, lengths, start = [], [], 0
        for slab, bounds in slabs:
            of_word = pieces.take(words.indices.slice(start, len(slab)))  # a list per word
            ids.append(of_word.values.to_numpy())
            lengths.append(np.diff(of_word.offsets.to_numpy()[bounds]))
            start += len(slab)
        return np.concatenate(ids), np.concatenate(lengths)

    def _pieces(self, words: list[str]) -> pa.LargeListArray:
        """The ids of each of the distinct words, remembered or learned: list<uint32>."""
        self._memo.make_room()
        self._learn([word for word in words if word not in self._memo])
        return self._memo.ids_of(words)

    def _learn(self, words: list[str]) -> None:
        plain = [word for word in words if word.isascii() and word.isprintable()]
        other = [word for word in words if not (word.isascii() and word.isprintable())]
        for batch in _batches(plain):
            self._memo.add(batch, *self._encode_plain(batch))
        for batch in _batches(other):
            self._memo.add(batch, *self._encode_other(batch))

    def _encode_plain(self, words: list[str]) -> tuple[Ids, Offsets]:
        """The ids of words and marks of printable ASCII, and where each word's begin.

        Each stays one word, so one text can hold many: a word begins at every piece that continues
        none. Four times as fast as `_encode_other`.
        """
        text = " ".join(word[: MAX_WORD_CHARACTERS + 1] for word in words)  # longer is [UNK]
        encoding = self._wordpiece.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, np.uint32)
        return ids, np.flatnonzero(~self._is_continuation[ids])

    def _encode_other(self, words: list[str]) -> tuple[Ids, Offsets]:
        """What is not plain may become any number of words, or none: the library keeps count."""
        encoding = self._library.encode(words, is_pretokenized=True, add_special_tokens=False)
        origins = np.array(encoding.word_ids, np.int64)
        return np.array(encoding.ids, np.uint32), np.searchsorted(origins, np.arange(len(words)))


class Memo:
    """Words and their ids. A word has a number, so that the ids of many are gathered at once.

    It holds about `max_bytes` and what a call adds to that; `make_room` then forgets everything,
    which costs less than to keep count of what was asked for.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ids = bytearray()  # uint32, of all words
        self._ends = bytearray(8)  # int64: where in `_ids` each word ends, after a 0
        self._word_bytes = 0

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    def make_room(self) -> None:
        """Forget everything if there is too much of it."""
        if self._word_bytes + len(self._ids) > self._max_bytes:
            self._forget()

    def add(self, words: list[str], ids: Ids, starts: Offsets) -> None:
        """Remember words that it lacks, their ids, and where in these each word's begin."""
        ends = len(self._ids) // ids.itemsize + np.append(starts[1:], len(ids))
        known = len(self._numbers)
        self._numbers.update(zip(words, range(known, known + len(words)), strict=True))
        self._ids += ids.tobytes()
        self._ends += ends.tobytes()
        self._word_bytes += sum(map(sys.getsizeof, words)) + ENTRY_BYTES * len(words)

    def ids_of(self, words: list[str]) -> pa.LargeListArray:
        """The ids of each of the words: list<uint32>."""
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        ends, ids = np.frombuffer(self._ends, np.int64), np.frombuffer(self._ids, np.uint32)
        return pa.LargeListArray.from_arrays(ends, ids).take(pa.array(numbers))


def cut_words(sentences: list[str], *, letters: bytes) -> tuple[pa.LargeStringArray, Offsets]:
    """The W words and marks of S sentences, and where each sentence begins and ends, int64 [S + 1].

        ["No, no.", "x"]  ->  [no][,][no][.][x],  [0 4 5]

    Spaces go; every other byte stays in a word, mapped by `letters`.
    """
    encoded = [sentence.encode() for sentence in sentences]
    edges = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1)
    raw = b" ".join([b"", *encoded, b""])  # a space at either end of each
    kinds = np.frombuffer(raw.translate(KINDS), np.uint8)

    inside, mark = kinds == INSIDE, kinds == PUNCTUATION
    begins, ends = mark.copy(), mark
    begins[1:] |= inside[1:] > inside[:-1]
    ends[:-1] |= inside[:-1] > inside[1:]
    begin = np.flatnonzero(begins)
    offsets = offsets_of(np.flatnonzero(ends) + 1 - begin)

    text = raw.translate(letters, b" ")
    words = pa.LargeStringArray.from_buffers(len(begin), pa.py_buffer(offsets), pa.py_buffer(text))
    return words, np.searchsorted(begin, edges)


def _slabs(sentences: list[str]) -> Iterator[list[str]]:
    """The sentences, in lists of some SLAB_CHARACTERS; at least one."""
    ends = np.cumsum(np.fromiter(map(len, sentences), np.int64, len(sentences)))
    total = int(ends[-1]) if sentences else 0
    cuts = np.searchsorted(ends, np.arange(SLAB_CHARACTERS, total, SLAB_CHARACTERS)).tolist()
    for start, stop in pairwise([0, *cuts, len(sentences)]):
        yield sentences[start:stop]


def _batches(words: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(words), WORDS_PER_CALL):
        yield words[start : start + WORDS_PER_CALL]
