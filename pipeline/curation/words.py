"""Texts to the hashes of their words, and these to the hashes of word n-grams.

    ["Ada wrote it.", "東京 is"]  ->  ada wrote it | 東 京 is
    5-grams of "a b c d e f"      ->  a b c d e | b c d e f

**Texts that a reader sees as the same words are the same words.** They are those of the text after
NFKC and case folding, both of which Unicode keeps stable, so that ligatures, full-width forms and
capitals make no difference. Characters that are not shown (soft hyphens, joiners, marks of
direction, variation selectors; Unicode's Default_Ignorable_Code_Point) vanish first, and tags and
entities of HTML become spaces and characters. A word is a run of letters, marks and digits; in
scripts that are written without spaces (Han, Kana, Thai, Lao, Burmese, Khmer, ...) each character
is one. Punctuation and symbols only separate, whether an emoji is glued to a word or not.

What separates is fixed, so that every Python finds the same words: categories of Unicode 3.2, which
every Python has, symbols and punctuation of Unicode 14 (SYMBOLS), and the emoji blocks as a whole,
with what later versions add to them. Of other newer characters all are letters.

A word is a 32-bit hash, an n-gram a 64-bit hash of n of those. Two words in 4 billion share a hash;
in n-grams that could only matter where the other words are equal, too.
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
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
#: Code points that are not shown: Default_Ignorable_Code_Point of Unicode 14, assigned or reserved.
IGNORABLE: Final = (
    *((0x00AD, 0x00AE), (0x034F, 0x0350), (0x061C, 0x061D), (0x115F, 0x1161), (0x17B4, 0x17B6)),
    *((0x180B, 0x1810), (0x200B, 0x2010), (0x202A, 0x202F), (0x2060, 0x2070), (0x3164, 0x3165)),
    *((0xFE00, 0xFE10), (0xFEFF, 0xFF00), (0xFFA0, 0xFFA1), (0xFFF0, 0xFFF9), (0x1BCA0, 0x1BCA4)),
    *((0x1D173, 0x1D17B), (0xE0000, 0xE1000)),
)
IGNORED: Final = re.compile(f"[{''.join(f'{chr(a)}-{chr(b - 1)}' for a, b in IGNORABLE)}]+")
MARKUP: Final = re.compile("</?[A-Za-z][^<>]{0,500}>|<!--.{0,500}?-->", re.DOTALL)
#: Symbols and punctuation that Unicode 3.2 did not have; ranges may include what is not assigned.
SYMBOLS: Final = """
2EF-2FF 58D-58F 5C6 606-60F 61D-61E 7F6-7F9 7FE-7FF 830-83E 85E 888 9FB 9FD A76 AF0-AF1
BF3-BFA C77 C7F C84 D4F D79 FCE-FDA 109E-109F 1360 1390-1399 1400 1940-1945 19DE-19FF
1A1E-1A1F 1AA0-1AA6 1AA8-1AAD 1B5A-1B6A 1B74-1B7E 1BFC-1BFF 1C3B-1C3F 1C7E-1C7F 1CC0-1CC7 1CD3
2053-205E 20B2-20C0 213B 214C-214D 214F 218A-23FF 2614-2760 2795-2BFF 2CE5-2CEA 2CF9-2CFC
2CFE-2CFF 2D70 2E00-2E2E 2E30-2E5D 31C0-31E3 321D-321E 3244-3247 3250 327C-327E 32CC-33FF
4DC0-4DFF A4FE-A4FF A60D-A60F A673 A67E A6F2-A716 A720-A721 A789-A78A A828-A82B A836-A839
A874-A877 A8CE-A8CF A8F8-A8FA A8FC A92E-A92F A95F A9C1-A9CD A9DE-A9DF AA5C-AA5F AA77-AA79
AADE-AADF AAF0-AAF1 AB5B AB6A-AB6B ABEB FBB2-FBC2 FD40-FD4F FDCF FDFD-FDFF FE10-FE19 FE47-FE48
10100-10102 10137-1013F 10179-10189 1018C-101FC 1039F 103D0 1056F 10857 10877-10878 1091F
1093F 10A50-10A58 10A7F 10AC8 10AF0-10AF6 10B39-10B3F 10B99-10B9C 10EAD 10F55-10F59
10F86-10F89 11047-1104D 110BB-110BC 110BE-110C1 11140-11143 11174-11175 111C5-111C8 111CD
111DB 111DD-111DF 11238-1123D 112A9 1144B-1144F 1145A-1145D 114C6 115C1-115D7 11641-11643
11660-1166C 116B9 1173C-1173F 1183B 11944-11946 119E2 11A3F-11A46 11A9A-11A9C 11A9E-11AA2
11C41-11C45 11C70-11C71 11EF7-11EF8 11FD5-11FFF 12470-12474 12FF1-12FF2 16A6E-16A6F 16AF5
16B37-16B3F 16B44-16B45 16E97-16E9A 16FE2 1BC9C 1BC9F 1CF50-1D129 1D1DE-1D241 1D245
1D300-1D356 1D800-1D9FF 1DA37-1DA3A 1DA6D-1DA74 1DA76-1DA83 1DA85-1DA8B 1E14F 1E2FF
1E95E-1E95F 1ECAC 1ECB0 1ED2E 1EEF0-1F0F5 1F10D-1FBEF
"""
SLAB_CHARACTERS: Final = 1 << 18  # hashed at once: the working set stays in the cache
BASE: Final = np.uint64(0xD6E8FEB86659FD93)  # odd, so it has an inverse modulo 2**64
INVERSE: Final = np.uint64(pow(int(BASE), -1, 1 << 64))


def hash_words(texts: Sequence[str]) -> Ragged:
    """The 32-bit hash of each word: D rows of uint32."""
    parts = [_parts(without_markup(text)) for text in texts]
    slabs = text_slabs(list(chain.from_iterable(parts)), SLAB_CHARACTERS)
    hashes = concatenate(list(map(_hash_slab, slabs)))
    return Ragged(hashes.values, hashes.offsets[offsets_of(list(map(len, parts)))])


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

    A cut is behind white space or a full stop of CJK, which no word or fold spans. Where a slab has
    none, the part is longer.
    """
    if len(text) <= SLAB_CHARACTERS:
        return [text]
    cut = "[ \\n\\t\u3002\u3000]"
    return re.findall(rf"(?s).{{1,{SLAB_CHARACTERS}}}(?<={cut})|.+?(?:{cut}|$)", text)


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """The code points of the texts, each followed by a 0, and their kinds.

    What the tables cannot fold one character at a time, the library has folded.
    """
    codes = _codes(texts)
    kinds = _tables()[0][codes]
    rare = np.flatnonzero(kinds & BY_LIBRARY)
    if len(rare):
        ends = np.flatnonzero(codes == 0)
        by_library = set(np.searchsorted(ends, rare).tolist())
        codes = _codes([fold(t) if i in by_library else t for i, t in enumerate(texts)])
        kinds = _tables()[0][codes]
    return codes, kinds & ~BY_LIBRARY


def without_markup(text: str) -> str:
    """The text without tags and entities of HTML: "fine.<br />So &amp; so" -> "fine. So & so"."""
    if "<" in text:
        text = MARKUP.sub(" ", text)
    return html.unescape(text) if "&" in text else text


def fold(text: str) -> str:
    """The text as its words are compared."""
    shown = unicodedata.normalize("NFKC", IGNORED.sub("", text))
    return unicodedata.normalize("NFKC", shown.casefold())


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
    symbols = frozenset(map(chr, _symbols()))
    kinds[at] = [_kind(folded, composing, symbols) for folded in folds]
    for start, stop in IGNORABLE:
        kinds[start:stop] = LETTER + BY_LIBRARY
    codes[at] = [ord(folded[:1] or "\0") for folded in folds]
    unspaced = np.zeros(0x110000, np.bool_)
    for start, stop in UNSPACED:
        unspaced[start:stop] = True
    kinds[unspaced[codes] & (kinds & 3 == LETTER)] += WHOLE_WORD - LETTER
    return kinds, mix64(codes + np.uint64(1))


def _symbols() -> Iterator[int]:
    """The code points of SYMBOLS."""
    for first, _, last in (part.partition("-") for part in SYMBOLS.split()):
        yield from range(int(first, 16), int(last or first, 16) + 1)


def _kind(folded: str, composing: set[str], symbols: frozenset[str]) -> int:
    """SEPARATOR or LETTER, with BY_LIBRARY unless it is one character whatever is beside it."""
    categories = map(unicodedata.ucd_3_2_0.category, folded)
    separates = (category[0] in "ZPS" or category == "Cc" for category in categories)
    if all(c in symbols or is_one for c, is_one in zip(folded, separates, strict=True)):
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
