"""Where Punkt may end a sentence: candidates in a whole UTF-8 text at once.

At every `.`, `?` or `!` before a space or a closing mark, Punkt decides whether a sentence ends
there, from the *chunk* that ends with the mark and the *follower*: the next chunk, or one closing
mark.

    text      Dr. Oz came (at 5 p.m.) today!  He left.
    chunk     Dr.              p.m.      today!            starts after the last ASCII space
    follower  Oz                )     He

Marks and ASCII spaces are single bytes in UTF-8, so they are found in columns; a regular expression
reads on at the few marks before a character of several bytes, or before more than one space.
"""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Offsets, offsets_of, slice_indices
from clozeline.pipeline.sentences.marks import SPACE

QUOTES = "\u2018\u2019\u201c\u201d\xab\xbb"
ASCII_CLOSING = "!\"'():;?@[]*{}"


def any_of(characters: str) -> bytes:
    """A pattern for one of these characters beyond ASCII, in UTF-8."""
    return b"|".join(re.escape(character.encode()) for character in characters)


WIDE_SPACE = any_of("".join(re.findall(f"[{SPACE}]", "".join(map(chr, range(0x80, 0x3001))))))
ANY_SPACE = rb"(?:[\t-\r ]|" + WIDE_SPACE + rb")"
QUOTE = any_of(QUOTES)
#: What is between a mark and its follower: space, or nothing before a closing mark.
BETWEEN = re.compile(
    ANY_SPACE + rb"++(?=[\s\S])|(?=[" + re.escape(ASCII_CLOSING.encode()) + rb"]|" + QUOTE + rb")"
)
CHUNK = re.compile(rb"(?:(?!" + WIDE_SPACE + rb")[^\t-\r ])+")
#: Closing marks at the start of a sentence that belong to the one before.
STRAY = re.compile(rb"((?:[\"')\]}]|" + QUOTE + rb")+?)(?:" + ANY_SPACE + rb"+|(?=--)|$)")

OTHER, BLANK, LETTER, MARK, CLOSING, WIDE = range(6)  # kinds of byte; ? and ! are MARK


def kind_of_byte(byte: int) -> int:
    character = chr(byte)
    if byte >= 0x80:
        return WIDE
    if character in "\t\n\v\f\r ":
        return BLANK
    if character in ".?!":
        return MARK
    if character in ASCII_CLOSING:
        return CLOSING
    return LETTER if character.isalpha() else OTHER


KINDS = bytes(map(kind_of_byte, range(256)))
KIND_OF = np.frombuffer(KINDS, np.uint8)
FOLLOWS_AT_ONCE = np.array([byte != 0x2E and KINDS[byte] in (MARK, CLOSING) for byte in range(256)])
IS_STRAY = np.array([byte in b"\"')]}" or KINDS[byte] == WIDE for byte in range(256)])
NEVER_BEGINS = np.array([byte in b'")]}' for byte in range(256)])
LOWERED = np.frombuffer(bytes(range(256)).lower(), np.uint8)


@dataclass(frozen=True)
class Candidates:
    """C places where a sentence may end: the chunk data[starts:ends], the start of the follower."""

    starts: Offsets
    ends: Offsets
    followers: Offsets


def find_candidates(data: bytes, borders: Offsets) -> Candidates:
    """The candidates of NLTK in a text whose paragraphs begin after `borders`; these are not space.

    Of two marks in a chunk NLTK considers only the later one, unless the first is the whole chunk.
    """
    kinds = np.frombuffer(data.translate(KINDS), np.uint8)
    marks = np.flatnonzero(kinds == MARK)
    followers = _followers(data, kinds, marks)
    marks, followers = marks[followers > 0], followers[followers > 0]
    before = _last_before(marks, np.flatnonzero(kinds == BLANK))
    before = np.maximum(before, _last_before(marks, borders))
    starts = np.where(before > 0, before + 1, 0)  # NLTK does not see a space at the very beginning
    last = np.ones(len(marks), bool)
    last[:-1] = (before[1:] > marks[:-1]) | (starts[1:] >= marks[:-1])
    return Candidates(starts[last], marks[last] + 1, followers[last])


def _followers(data: bytes, kinds: NDArray[np.uint8], marks: Offsets) -> Offsets:
    """Where the follower of each mark starts; 0 if it has none."""
    raw = np.frombuffer(data + b"AA", np.uint8)
    after, second = raw[marks + 1], KIND_OF[raw[marks + 2]]
    followers = np.where(FOLLOWS_AT_ONCE[after], marks + 1, 0)
    spaced = KIND_OF[after] == BLANK
    followers[spaced] = marks[spaced] + 2
    unclear = spaced & ((second == BLANK) | (second == WIDE)) | (KIND_OF[after] == WIDE)
    unclear |= marks + 2 >= len(data)
    for i in np.flatnonzero(unclear).tolist():
        match = BETWEEN.match(data, int(marks[i]) + 1)
        followers[i] = match.end() if match else 0
    return followers


def _last_before(places: Offsets, among: Offsets) -> Offsets:
    """The last of the ascending `among` before each place; -1 where there is none."""
    return np.append(-1, among)[np.searchsorted(among, places)]


def chunks_of(
    data: bytes, found: Candidates
) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """The chunks, the same in lower case (of ASCII), and two properties of each.

    - It is a word and a period: two or more letters, all of them ASCII.
    - It is ASCII, and its mark is a token of its own. NLTK's tokens end before `?`, `!` and closing
      brackets, and no token begins with one of the latter, so a period after them is alone.
    """
    lengths = found.ends - found.starts
    text = np.frombuffer(data, np.uint8)[slice_indices(found.starts, lengths)]
    offsets = offsets_of(lengths)
    kinds = KIND_OF[text]
    letters = np.diff(offsets_of(kinds == LETTER)[offsets])
    wide = np.diff(offsets_of(kinds == WIDE)[offsets])
    mark, before = text[offsets[1:] - 1], text[offsets[1:] - 2]
    is_word = (letters == lengths - 1) & (lengths > 2) & (mark == ord("."))
    is_alone = (wide == 0) & ((mark != ord(".")) | (lengths > 1) & NEVER_BEGINS[before])
    return _strings(text, offsets), _strings(LOWERED[text], offsets), is_word, is_alone


def _strings(text: NDArray[np.uint8], offsets: Offsets) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
