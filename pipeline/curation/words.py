"""Texts to the hashes of their words, and these to the hashes of word n-grams.

    ["Ada wrote it.", "東京 is"]  ->  ada wrote it | 東 京 is
    5-grams of "a b c d e f"      ->  a b c d e | b c d e f

Words are those of the text after NFKC and case folding, both of which Unicode keeps stable, so
that ligatures, full-width forms and capitals make no difference. A word is a run of letters, marks
and digits; in scripts that are written without spaces (Han, Kana, Thai, Lao, Burmese, Khmer, ...)
each character is one. Punctuation and symbols only separate.

A word is a 32-bit hash, an n-gram a 64-bit hash of n of those. Two words in 4 billion share a hash;
in n-grams that could only matter where the other words are equal, too.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, mix64
from clozeline.pipeline.common.ragged import (
    Ragged,
    concatenate,
    offsets_of,
    slice_indices,
    text_slabs,
)

SEPARATOR, LETTER, WHOLE_WORD = 0, 1, 2  # kinds of character
BY_LIBRARY: Final = np.uint8(4)  #: added to the kind of what one character does not decide
#: Ranges of characters that fold; others are rare Han characters and tags.
FOLDED: Final = (range(0x20000), range(0x2F800, 0x2FA20))
#: Vowels and last consonants of Hangul, which compose with what is before them.
JAMO: Final = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
#: Blocks of characters that are words, after folding: Thai and Lao, Burmese, Khmer, Tai scripts,
#: Kana, Han.
UNSPACED: Final = (
    *((0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x1950, 0x1A00), (0x1A20, 0x1AB0)),
    *((0x3040, 0x3100), (0x31F0, 0x3200), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xA9E0, 0xAA00)),
    *((0xAA60, 0xAAE0), (0xF900, 0xFB00), (0x20000, 0x40000)),
)
SLAB_CHARACTERS: Final = 1 << 18  # hashed at once: the working set stays in the cache
BASE: Final = np.uint64(0xD6E8FEB86659FD93)  # odd, so it has an inverse modulo 2**64
INVERSE: Final = np.uint64(pow(int(BASE), -1, 1 << 64))


def hash_words(texts: Sequence[str]) -> Ragged:
    """The 32-bit hash of each word: D rows of uint32."""
    if max(map(len, texts), default=0) > SLAB_CHARACTERS:
        parts = list(map(_parts, texts))
        found = _hash_texts(list(chain.from_iterable(parts)))
        return Ragged(found.values, found.offsets[offsets_of(list(map(len, parts)))])
    return _hash_texts(texts)


@np.errstate(over="ignore")  # arithmetic modulo 2**64 is the point
def hash_ngrams(words: Ragged, size: int, *, pad: bool) -> Ragged:
    """The 64-bit hash of each n-gram of words, in the order of the text: D rows of uint64.

    A text with fewer than `size` words has none, or with `pad` one of all its words.
    """
    lengths = words.lengths
    if pad and (short := (lengths > 0) & (lengths < size)).any():
        padded = np.where(short, size, lengths)
        values = np.zeros(padded.sum(), np.uint32)
        values[slice_indices(offsets_of(padded)[:-1], lengths)] = words.values
        words, lengths = Ragged(values, offsets_of(padded)), padded
    ends = max(len(words.values) - size + 1, 0)
    hashes = np.zeros(ends, np.uint64)
    for start in range(size):
        hashes *= BASE
        hashes += words.values[start : start + ends]
    counts = np.maximum(lengths - size + 1, 0)
    if counts.sum() < ends:  # n-grams that span two texts are left out
        hashes = hashes[slice_indices(words.offsets[:-1], counts)]
    return Ragged(mix64(hashes), offsets_of(counts))


def _hash_texts(texts: Sequence[str]) -> Ragged:
    return concatenate([_hash_slab(slab) for slab in text_slabs(texts, SLAB_CHARACTERS)])


@np.errstate(over="ignore")
def _hash_slab(texts: Sequence[str]) -> Ragged:
    codes, kinds = _characters(texts)
    inside, whole = kinds > SEPARATOR, kinds == WHOLE_WORD
    begins, ends = inside.copy(), inside.copy()
    begins[1:] &= ~inside[:-1] | whole[1:] | whole[:-1]
    ends[:-1] &= ~inside[1:] | whole[1:] | whole[:-1]
    begin, end = np.flatnonzero(begins), np.flatnonzero(ends)
    # A polynomial in the characters, for all words at once: a difference of running sums.
    powers, inverses = _powers(max(len(codes), SLAB_CHARACTERS).bit_length())
    terms = _tables()[1][codes]
    terms *= powers[: len(codes)]
    sums = np.cumsum(terms)
    hashes = sums[end]
    hashes -= sums[begin]
    hashes += terms[begin]
    hashes *= inverses[begin]
    words = (mix64(hashes) >> np.uint64(32)).astype(np.uint32)
    stops = np.searchsorted(begin, np.flatnonzero(codes == 0))
    return Ragged(words, np.concatenate([[0], stops]))


def _parts(text: str) -> list[str]:
    """The text in parts of at most a slab, which takes 40 bytes of memory for each character.

    A cut is behind a separator, before a character that does not combine: neither a word nor a
    fold spans it. Where a slab has no such place, the part is longer.
    """
    parts, start, end = [], 0, SLAB_CHARACTERS
    while end < len(text):
        kinds = _tables()[0][_codes([text[end - SLAB_CHARACTERS : end + 1]])[:-1]]
        cuts = np.flatnonzero((kinds[:-1] == SEPARATOR) & (kinds[1:] < BY_LIBRARY))
        if len(cuts):
            cut = end - SLAB_CHARACTERS + int(cuts[-1]) + 1
            parts.append(text[start:cut])
            start = cut
        end = (start if len(cuts) else end) + SLAB_CHARACTERS
    return [*parts, text[start:]]


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """The code points of the texts, each followed by a 0, and their kinds.

    What the tables cannot fold one character at a time, the library has folded.
    """
    codes = _codes(texts)
    kinds = _tables()[0][codes]
    found = np.flatnonzero(kinds & BY_LIBRARY)
    if len(found):
        ends = np.flatnonzero(codes == 0)
        by_library = set(np.searchsorted(ends, found).tolist())
        codes = _codes([fold(t) if i in by_library else t for i, t in enumerate(texts)])
        kinds = _tables()[0][codes]
    return codes, kinds & ~BY_LIBRARY


def fold(text: str) -> str:
    """The text as its words are compared."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _codes(texts: Sequence[str]) -> NDArray[np.uint32]:
    return np.frombuffer("\0".join([*texts, ""]).encode("utf-32-le", "replace"), np.uint32)


@cache
def _tables() -> tuple[NDArray[np.uint8], UInt64Array]:
    """For each code point, [0x110000]: its kind, and the hash of what it is folded to."""
    at = np.concatenate([np.arange(part.start, part.stop) for part in FOLDED])
    characters = list(map(chr, at.tolist()))
    folds = [fold(character) for character in characters]
    composing = {chr(int(parts[-1], 16)) for parts in map(_decomposed, characters) if parts}
    composing.update(map(chr, JAMO))
    kinds, codes = np.full(0x110000, LETTER, np.uint8), np.arange(0x110000, dtype=np.uint64)
    kinds[at] = [_kind(folded, composing) for folded in folds]
    codes[at] = [ord(folded[:1] or "\0") for folded in folds]
    unspaced = np.zeros(0x110000, np.bool_)
    for start, stop in UNSPACED:
        unspaced[start:stop] = True
    kinds[unspaced[codes] & (kinds & 3 == LETTER)] += WHOLE_WORD - LETTER
    return kinds, mix64(codes + np.uint64(1))


def _kind(folded: str, composing: set[str]) -> int:
    """SEPARATOR or LETTER, with BY_LIBRARY unless it is one character whatever is beside it.

    By Unicode 3.2, which every Python has, so that every Python finds the same words. What is not
    in it (later scripts, emoji) is a letter.
    """
    separates = [unicodedata.ucd_3_2_0.category(c) for c in folded]
    if all(category[0] in "ZPS" or category == "Cc" for category in separates):
        return SEPARATOR
    combines = any(unicodedata.combining(c) or c in composing for c in folded)
    return LETTER + (int(BY_LIBRARY) if combines or len(folded) != 1 else 0)


def _decomposed(character: str) -> list[str]:
    """The code points that the character is composed of; empty if it is not, and for Hangul."""
    parts = unicodedata.decomposition(character).split()
    return parts if len(parts) > 1 and not parts[0].startswith("<") else []


@lru_cache(2)  # of slabs as they are, and of the last that one long text made longer
def _powers(bits: int) -> tuple[UInt64Array, UInt64Array]:
    """BASE**i and BASE**-i modulo 2**64 for i < 2**bits."""
    with np.errstate(over="ignore"):
        parts = [np.full(1 << bits, base, np.uint64) for base in (BASE, INVERSE)]
        for part in parts:
            part[0] = 1
            np.cumprod(part, out=part)
    return parts[0], parts[1]
