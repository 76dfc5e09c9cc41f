"""Where Punkt may end a sentence: candidates in a whole UTF-8 text at once.

At every `.`, `?` or `!` before a space or a closing mark, Punkt decides whether a sentence ends
there, from the *chunk* that ends with the mark and the *follower*: the next chunk, or one closing
mark.

    text      Dr. Oz came (at 5 p.m.) today!  He left.
    chunk     Dr.              p.m.      today!            starts after the last ASCII space
    follower  Oz                )     He

The lines of the text are separated by NULs, and have none inside and no space around them. Marks
and ASCII spaces are single bytes in UTF-8, so they are found in columns; a regular expression reads
on at the few marks before a character of several bytes, or before more than one space.
"""

import re
import string
from typing import NamedTuple

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
    ANY_SPACE + rb"++|(?=[" + re.escape(ASCII_CLOSING.encode()) + rb"]|" + QUOTE + rb")"
)
CHUNK = re.compile(rb"(?:(?!" + WIDE_SPACE + rb")[^\0\t-\r ])+")
#: Closing marks at the start of a sentence that belong to the one before.
STRAY = re.compile(rb"((?:[\"')\]}]|" + QUOTE + rb")+?)(?:" + ANY_SPACE + rb"+|(?=--|\0)|$)")

# Kinds of byte; ? and ! are MARK.
LINE_END, BLANK, OTHER, LETTER, MARK, CLOSING, WIDE = range(7)
KIND_OF = np.full(256, OTHER, np.uint8)
KIND_OF[list(string.ascii_letters.encode())] = LETTER
KIND_OF[list(b"\t\n\v\f\r ")] = BLANK
KIND_OF[list(ASCII_CLOSING.encode())] = CLOSING
KIND_OF[list(b".?!")] = MARK
KIND_OF[0x80:] = WIDE
KIND_OF[0] = LINE_END
KINDS = KIND_OF.tobytes()
FOLLOWS_AT_ONCE = np.isin(KIND_OF, (MARK, CLOSING)) & (np.arange(256) != ord("."))
IS_STRAY = np.isin(np.arange(256), list(b"\"')]}")) | (KIND_OF == WIDE)
NEVER_BEGINS = np.isin(np.arange(256), list(b'")]}'))
LOWERED = np.frombuffer(bytes(range(256)).lower(), np.uint8)


class Candidates(NamedTuple):
    """C places where a sentence may end: the chunk data[starts:ends], the start of the follower."""

    starts: Offsets
    ends: Offsets
    followers: Offsets


def find_candidates(data: bytes) -> Candidates:
    """The candidates of NLTK in lines.

    Of two marks in a chunk NLTK considers only the later one, unless the first is the whole chunk.
    """
    kinds = np.frombuffer(data.translate(KINDS), np.uint8)
    marks = np.flatnonzero(kinds == MARK)
    followers = _followers(data, kinds, marks)
    marks, followers = marks[followers > 0], followers[followers > 0]
    before = np.append(-1, np.flatnonzero(kinds <= BLANK))
    starts = before[np.searchsorted(before, marks) - 1] + 1
    last = np.ones(len(marks), bool)
    last[:-1] = starts[1:] >= marks[:-1]
    return Candidates(starts[last], marks[last] + 1, followers[last])


def _followers(data: bytes, kinds: NDArray[np.uint8], marks: Offsets) -> Offsets:
    """Where the follower of each mark starts; 0 if it has none."""
    raw = np.frombuffer(data + b"AA", np.uint8)
    after, second = raw[marks + 1], KIND_OF[raw[marks + 2]]
    followers = np.where(FOLLOWS_AT_ONCE[after], marks + 1, 0)
    spaced = KIND_OF[after] == BLANK
    followers[spaced] = marks[spaced] + 2
    unclear = spaced & ((second == BLANK) | (second == WIDE)) | (KIND_OF[after] == WIDE)
    for i in np.flatnonzero(unclear).tolist():
        match = BETWEEN.match(data, int(marks[i]) + 1)
        followers[i] = match.end() if match else 0
    return followers


def chunks_of(
    data: bytes, candidates: Candidates
) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """The chunks, the same in lower case (of ASCII), and two properties of each.

    - It is a word and a period: two or more letters, all of them ASCII.
    - It is ASCII, and its mark is a token of its own. NLTK's tokens end before `?`, `!` and closing
      brackets, and no token begins with one of the latter, so a period after them is alone.
    """
    lengths = candidates.ends - candidates.starts
    text = np.frombuffer(data, np.uint8)[slice_indices(candidates.starts, lengths)]
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
