"""Text to sentences: the same spans as NLTK's Punkt (Kiss & Strunk 2006), several times faster.

In scripts other than Latin, Greek and Cyrillic, `marks.py` cuts these spans further.

Most of the chunks before a possible end (candidates.py) end a sentence whatever follows: any
plain word that is not an abbreviation, and any mark after a closing bracket. Columns find these in
all chunks at once. For the others NLTK's rules (rules.py) are asked, mostly for a chunk that
is remembered.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from operator import contains

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.ragged import Offsets, offsets_of
from clozeline.pipeline.sentences.candidates import (
    IS_STRAY,
    STRAY,
    Candidates,
    chunks_of,
    find_candidates,
)
from clozeline.pipeline.sentences.marks import cut_sentence
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.rules import CERTAIN, PunktRules
from clozeline.pipeline.sentences.spans import Sentences, decoded, encoded, without_gaps

#: Between paragraphs that are split as one text. No candidate is before it, no chunk goes across.
SEPARATOR = "\0"
SLAB_CHARACTERS = 1 << 22

#: Paragraphs joined, the end of each there, and the end of the last one without space after it.
Slab = tuple[bytes, Offsets, int]


class SentenceSplitter:
    """Punkt for one language, cut further at the sentence ends of other scripts."""

    def __init__(self, parameters: PunktData) -> None:
        self._rules = PunktRules(parameters)
        known = [f"{word}.".encode() for word in self._rules.known_stems()]
        self._known_words = pa.array(known, pa.large_binary())

    def split(
        self, paragraphs: Sequence[str], *, cut: ArrayLike = True
    ) -> tuple[Sentences, NDArray[np.int64]]:
        """All sentences in order, and the number of sentences per paragraph: int64 [paragraphs].

        ["It is. So there!", "", "Yes"]  ->  [It is.][So there!][Yes],  [2, 0, 1]

        Where `cut` (one bool, or one a paragraph) is False, sentences end only where Punkt ends
        them.
        """
        return self._split(map(_joined, _slabs(paragraphs)), cut)

    def split_lines(
        self, text: bytes, *, cut: ArrayLike = True
    ) -> tuple[Sentences, NDArray[np.int64]]:
        """As `split`, where the paragraphs are the lines of a text in UTF-8.

        None of them is empty, has space around it or has a NUL in it.
        """
        return self._split(_slabs_of_lines(text), cut)

    def _split(self, given: Iterable[Slab], cut: ArrayLike) -> tuple[Sentences, NDArray[np.int64]]:
        slabs = [self._split_slab(*slab) for slab in given]
        texts = [data for data, *_ in slabs]
        shifts = offsets_of(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        none = [np.zeros(0, np.int64)]
        starts, ends = (
            np.concatenate(none + [slab[i] + at for slab, at in zip(slabs, shifts, strict=False)])
            for i in (1, 2)
        )
        counts = np.concatenate(none + [of_paragraph for *_, of_paragraph in slabs])
        found = without_gaps(b" ".join(texts), starts, ends)
        further = np.flatnonzero(np.repeat(np.broadcast_to(cut, len(counts)), counts))
        return cut_further(found, further, counts)

    def _split_slab(
        self, data: bytes, stops: Offsets, last: int
    ) -> tuple[bytes, Offsets, Offsets, NDArray[np.int64]]:
        """The text, where each sentence starts and ends there, and how many each paragraph has.

        "It is. So!\\0Yes",  [10 14],  14  ->  the same,  [0 7 11],  [6 10 14],  [2 1]
        """
        ends, followers = self._breaks(data, stops, last)
        stops[-1] = last
        at = np.searchsorted(ends, stops, side="right")
        ends = np.insert(ends, at, stops)
        starts = np.insert(np.insert(followers, at, stops + 1), 0, 0)[:-1]
        # Closing marks may be all that follows the last break.
        final = at + np.arange(len(at))
        is_there = np.ones(len(ends), bool)
        is_there[final] = starts[final] < ends[final]
        counts = np.diff(np.cumsum(is_there)[final], prepend=0)
        return data, starts[is_there], ends[is_there], counts

    def _breaks(self, data: bytes, stops: Offsets, last: int) -> tuple[Offsets, Offsets]:
        """The end of the sentence before each break, and the start of the one after it."""
        found = find_candidates(data, stops[:-1])
        breaks = self._is_break(data, found, stops)
        ends, followers = found.ends[breaks], found.followers[breaks]
        strays = np.flatnonzero(IS_STRAY[np.frombuffer(data, np.uint8)[followers]])
        bounds = np.append(ends, last)[strays + 1]
        bounds = np.minimum(bounds, stops[np.searchsorted(stops, followers[strays])])
        for i, stop in zip(strays.tolist(), bounds.tolist(), strict=True):
            if stray := STRAY.match(data, int(followers[i]), stop):
                ends[i], followers[i] = stray.end(1), stray.end()
        return ends, followers

    def _is_break(self, data: bytes, found: Candidates, stops: Offsets) -> NDArray[np.bool_]:
        """Whether a sentence ends at each candidate."""
        chunks, lowered, is_word, certain = chunks_of(data, found)
        certain &= self._rules.ends_at_lone_marks
        certain |= is_word & ~np.asarray(pc.is_in(lowered, value_set=self._known_words))
        rest = np.flatnonzero(~certain)
        rare = chunks.take(pa.array(rest)).dictionary_encode()
        distinct = [self._rules.ending_of(chunk) for chunk in rare.dictionary.to_pylist()]
        of_rest = rare.indices.to_numpy()
        certain[rest] = np.array([ending is CERTAIN for ending in distinct], bool)[of_rest]
        # NLTK may take a control character for a blank line: see is_end.
        certain &= np.frombuffer(data, np.uint8)[found.followers] >= ord(" ")
        undecided, of_paragraphs = np.flatnonzero(~certain), stops.tolist()
        starts, ends, followers = (
            column[undecided].tolist() for column in (found.starts, found.ends, found.followers)
        )
        certain[undecided] = [
            self._rules.is_end(data, start, end, at, of_paragraphs)
            for start, end, at in zip(starts, ends, followers, strict=True)
        ]
        return certain


def cut_further(
    found: Sentences, rows: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[Sentences, NDArray[np.int64]]:
    """These sentences cut at the ends of other scripts, too, and the counts of all then."""
    parts = {row: spans for row in rows.tolist() if (spans := _parts(found, row))}
    if not parts:
        return found, counts
    lengths = np.ones(len(found), np.int64)
    lengths[list(parts)] = list(map(len, parts.values()))
    offsets = offsets_of(lengths)
    starts, ends = np.repeat(found.starts, lengths), np.repeat(found.ends, lengths)
    for row, spans in parts.items():
        at = slice(offsets[row], offsets[row + 1])
        starts[at], ends[at] = np.transpose(spans)
    return without_gaps(found.data, starts, ends), np.diff(offsets[offsets_of(counts)])


def _parts(found: Sentences, row: int) -> list[list[int]]:
    """Where the parts of the sentence start and end; nothing if it is not cut."""
    start, end = int(found.starts[row]), int(found.ends[row])
    if (data := found.data[start:end]).isascii():
        return []
    text = decoded(data)
    spans = cut_sentence(text, 0, len(text))
    if spans == [(0, len(text))]:
        return []
    edges = [0, *(edge for span in spans for edge in span)]
    sizes = [len(encoded(text[a:b])) for a, b in pairwise(edges)]
    parts: list[list[int]] = (start + np.cumsum(sizes)).reshape(-1, 2).tolist()
    return parts


def _joined(paragraphs: Sequence[str]) -> Slab:
    data = encoded(SEPARATOR.join(paragraphs))
    # A paragraph that has a separator in it is alone.
    between = _separators(data) if len(paragraphs) > 1 else np.zeros(0, np.int64)
    blank = len(encoded(paragraphs[-1])) - len(encoded(paragraphs[-1].rstrip()))
    return data, np.append(between, len(data)), len(data) - blank


def _slabs_of_lines(text: bytes) -> Iterator[Slab]:
    data = text.replace(b"\n", SEPARATOR.encode())
    between = _separators(data)
    after = np.searchsorted(between, np.arange(SLAB_CHARACTERS, len(data), SLAB_CHARACTERS))
    stops = np.append(between, len(data))
    begin = 0
    for last in sorted({*after.tolist(), len(stops) - 1} if data else ()):
        end = int(stops[last])
        inside = stops[np.searchsorted(stops, begin) : last + 1] - begin
        yield data[begin:end], inside, end - begin
        begin = end + 1


def _separators(data: bytes) -> Offsets:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord(SEPARATOR))


def _slabs(paragraphs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Runs of paragraphs that are split as one text.

    An empty paragraph, or one with space around it or the separator in it, is alone.
    """
    number = len(paragraphs)
    sizes = np.fromiter(map(len, paragraphs), np.int64, number)
    bare = np.fromiter(map(len, map(str.strip, paragraphs)), np.int64, number)
    alone = np.fromiter(map(contains, paragraphs, repeat(SEPARATOR)), bool, number)
    alone |= (bare < sizes) | (bare == 0)
    slab = np.cumsum(sizes) // SLAB_CHARACTERS
    begins = alone[1:] | alone[:-1] | (slab[1:] > slab[:-1])
    for start, stop in pairwise([0, *(np.flatnonzero(begins) + 1).tolist(), number]):
        if start < stop:
            yield paragraphs[start:stop]
