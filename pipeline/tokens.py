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
from numpy.typing import NDArray

from pipeline.tokenizer import MAX_WORD_CHARACTERS, Tokenizer

Ids = NDArray[np.uint32]
Offsets = NDArray[np.int64]

SPACE, INSIDE, PUNCTUATION = 0, 1, 2  # kinds of byte; bytes of longer characters are INSIDE
WORDS_PER_CALL = 256  # new words to one call of the library
ENTRY_BYTES = 100  # what a dictionary keeps for an entry beside its key and value


def kind_of_byte(byte: int) -> int:
    if byte == 0x20:
        return SPACE
    return PUNCTUATION if 0x20 < byte < 0x7F and not chr(byte).isalnum() else INSIDE


KINDS = bytes(map(kind_of_byte, range(256)))
AS_IT_IS = bytes(range(256))
LOWERED = AS_IT_IS.lower()  # A-Z alone: bytes know no other letters


class ColumnTokenizer:
    """Encodes batches of sentences; one per worker, since it remembers the words it has seen.

    The memo holds at most `memo_bytes` (an estimate) and never changes a result. A call needs some
    15 bytes of memory per byte of text; from about 1 MB of text to a call it is at its full speed.
    `vocab_size` is the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, *, memo_bytes: int = 128 << 20) -> None:
        self.vocab_size = tokenizer.vocab_size
        self._library = tokenizer.library
        self._is_continuation = tokenizer.is_continuation
        self._letters = LOWERED if tokenizer.lowercase else AS_IT_IS
        self._memo = Memo(memo_bytes)

    def encode(self, sentences: list[str]) -> tuple[Ids, Offsets]:
        """The ids of S sentences, one after the other (read-only), and the number of ids of each.

            ["Hello, world", "", "unaffable"]  ->  [7592 1010 2088 14477 20961 3468],  [3 0 3]

        A lone surrogate is no text: UnicodeEncodeError, as from the library.
        """
        words, bounds = cut_words(sentences, letters=self._letters)
        words = words.dictionary_encode()
        pieces = self._pieces(words.dictionary.to_pylist())
        ids = pieces.take(words.indices)  # a list per word
        return ids.values.to_numpy(), np.diff(ids.offsets.to_numpy()[bounds])

    def _pieces(self, words: list[str]) -> pa.LargeListArray:
        """The ids of each of the distinct words, remembered or learned: list<uint32>."""
        known = self._memo.look_up(words)
        learned = self._learn([word for word in words if word not in known])
        self._memo.add(learned)
        known |= learned
        pieces = [known[word] for word in words]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces)) // 4
        ids = np.frombuffer(b"".join(pieces), np.uint32)
        return pa.LargeListArray.from_arrays(_offsets(lengths), pa.array(ids))

    def _learn(self, words: list[str]) -> dict[str, bytes]:
        """Word -> its uint32 ids, from the library."""
        plain = [word for word in words if word.isascii() and word.isprintable()]
        other = [word for word in words if not (word.isascii() and word.isprintable())]
        learned = dict(zip(plain, self._encode_plain(plain), strict=True))
        return learned | dict(zip(other, self._encode_other(other), strict=True))

    def _encode_plain(self, words: list[str]) -> Iterator[bytes]:
        """Words and marks of printable ASCII stay one word each, so one text can hold many.

        Twice as fast as `_encode_other`: a word begins at every piece that continues none.
        """
        for batch in _batches(words):
            text = " ".join(word[: MAX_WORD_CHARACTERS + 1] for word in batch)  # longer is [UNK]
            encoding = self._library.encode(text, add_special_tokens=False)
            ids = np.array(encoding.ids, np.uint32)
            yield from _split(ids, np.flatnonzero(~self._is_continuation[ids]))

    def _encode_other(self, words: list[str]) -> Iterator[bytes]:
        """What is not plain may become any number of words, or none: the library keeps count."""
        for batch in _batches(words):
            encoding = self._library.encode(batch, is_pretokenized=True, add_special_tokens=False)
            origins = np.array(encoding.word_ids, np.int64)
            ids = np.array(encoding.ids, np.uint32)
            yield from _split(ids, np.searchsorted(origins, np.arange(len(batch))))


class Memo:
    """Word -> bytes, in two generations of half of `max_bytes` each.

    A full young generation becomes the old one, and the old one is forgotten; a word asked for
    again moves back to the young. So common words stay, and it costs nothing to keep count.
    """

    def __init__(self, max_bytes: int) -> None:
        self._generation_bytes = max_bytes // 2
        self._young: dict[str, bytes] = {}
        self._young_bytes = 0
        self._old: dict[str, bytes] = {}

    def look_up(self, words: list[str]) -> dict[str, bytes]:
        """The entries there are for `words`."""
        young, old = self._young, self._old
        found = {word: young[word] for word in words if word in young}
        again = {word: old[word] for word in words if word in old and word not in found}
        self.add(again)
        return found | again

    def add(self, entries: dict[str, bytes]) -> None:
        """Remember entries that the young generation lacks."""
        for word, value in entries.items():
            size = sys.getsizeof(word) + sys.getsizeof(value) + ENTRY_BYTES
            if size > self._generation_bytes:
                continue  # a line of megabytes without a space is not worth remembering
            if self._young_bytes + size > self._generation_bytes:
                self._young, self._old, self._young_bytes = {}, self._young, 0
            self._young[word] = value
            self._young_bytes += size


def cut_words(sentences: list[str], *, letters: bytes) -> tuple[pa.LargeStringArray, Offsets]:
    """The W words and marks of S sentences, and where each sentence begins and ends, int64 [S + 1].

        ["No, no.", "x"]  ->  [no][,][no][.][x],  [0 4 5]

    Spaces go; every other byte stays in a word, mapped by `letters`.
    """
    encoded = [sentence.encode() for sentence in sentences]
    edges = _offsets(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    raw = b"".join(encoded)
    kinds = np.frombuffer(raw.translate(KINDS), np.uint8)

    inside = kinds == INSIDE
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    first = edges[edges < len(raw)]
    begins[first] = inside[first]  # the sentence before may end inside a word
    begins |= kinds == PUNCTUATION

    bounds = np.searchsorted(np.flatnonzero(begins), edges)
    text = raw.translate(letters, b" ")
    offsets = np.append(np.flatnonzero(begins[kinds != SPACE]), len(text))
    words = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text)
    )
    return words, bounds


def _batches(words: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(words), WORDS_PER_CALL):
        yield words[start : start + WORDS_PER_CALL]


def _split(ids: Ids, starts: Offsets) -> list[bytes]:
    raw = ids.tobytes()
    bounds = np.append(starts, len(ids)) * ids.itemsize
    return [raw[start:end] for start, end in pairwise(bounds.tolist())]


def _offsets(lengths: NDArray[np.int64]) -> Offsets:
    return np.append(0, np.cumsum(lengths))
