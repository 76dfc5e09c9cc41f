"""Text to sentences: the same spans as NLTK's Punkt (Kiss & Strunk 2006), several times faster.

In scripts other than Latin, Greek and Cyrillic, `marks.py` cuts these spans further. Sentences are
slices of one UTF-8 text, so that millions of them need no Python objects.

Most of the chunks before a possible end (candidates.py) end a sentence whatever follows: any
plain word that is not an abbreviation, and any mark after a closing bracket. Columns find these in
all chunks at once. For the others NLTK's rules (punkt.py) are asked, mostly for a chunk that
is remembered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.ragged import Offsets, offsets_of, slice_indices
from clozeline.pipeline.sentences.candidates import (
    IS_STRAY,
    STRAY,
    Candidates,
    chunks_of,
    find_candidates,
)
from clozeline.pipeline.sentences.marks import cut_sentence
from clozeline.pipeline.sentences.punkt import CERTAIN, PunktData, PunktRules

#: Between the lines of a text. No candidate is before it, no chunk goes across.
SEPARATOR = b"\0"
SLAB_BYTES = 1 << 22  #: of lines, split at once
PART_BYTES = 1 << 20  #: of sentences, encoded at once: they stay in the processor's cache


@dataclass(frozen=True)
class Sentences:
    """S sentences; number i is data[starts[i] : ends[i]], and only spaces are between them."""

    data: bytes
    starts: Offsets  #: int64 [S], ascending
    ends: Offsets  #: int64 [S]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice) -> "Sentences":
        return Sentences(self.data, self.starts[rows], self.ends[rows])

    @classmethod
    def of(cls, sentences: Sequence[str]) -> "Sentences":
        """The sentences joined by spaces. Raises UnicodeEncodeError for a lone surrogate."""
        encoded = [sentence.encode() for sentence in sentences]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        starts = offsets_of(lengths + 1)[:-1]
        return cls(b" ".join(encoded), starts, starts + lengths)

    def to_list(self) -> list[str]:
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.data[start:end].decode() for start, end in spans]

    def slabs(self) -> Iterator["Sentences"]:
        """The sentences in parts of about PART_BYTES; at least one part."""
        total = int(self.ends[-1]) if len(self) else 0
        cuts = np.searchsorted(self.ends, np.arange(PART_BYTES, total, PART_BYTES)).tolist()
        for start, stop in pairwise([0, *cuts, len(self)]):
            starts, ends = self.starts[start:stop], self.ends[start:stop]
            first, last = (int(starts[0]), int(ends[-1])) if start < stop else (0, 0)
            yield Sentences(self.data[first:last], starts - first, ends - first)


def without_gaps(data: bytes, starts: Offsets, ends: Offsets) -> Sentences:
    """The sentences in a text that may have any bytes between them, which become spaces."""
    begins, stops = np.append(0, ends), np.append(starts, len(data))
    outside = slice_indices(begins, stops - begins)
    odd = outside[np.frombuffer(data, np.uint8)[outside] != ord(" ")]
    if len(odd):
        blanked = np.frombuffer(bytearray(data), np.uint8)
        blanked[odd] = ord(" ")
        data = blanked.tobytes()
    return Sentences(data, starts, ends)


class SentenceSplitter:
    """Punkt for one language, cut further at the sentence ends of other scripts."""

    def __init__(self, parameters: PunktData) -> None:
        self._rules = PunktRules(parameters)
        known = [f"{word}.".encode() for word in self._rules.known_stems]
        self._known_words = pa.array(known, pa.large_binary())

    def split(self, text: bytes, *, cut: ArrayLike = True) -> tuple[Sentences, NDArray[np.int64]]:
        """All sentences of a text in UTF-8, and the number of sentences per line: int64 [lines].

        "It is. So there!\\nYes"  ->  [It is.][So there!][Yes],  [2, 1]

        No line is empty, has space around it or has a NUL in it. Where `cut` (one bool, or one a
        line) is False, sentences end only where Punkt ends them.
        """
        data = text.replace(b"\n", SEPARATOR)
        parts = [(np.zeros(0, np.int64),) * 3]
        for begin, stops in _slabs(data):
            starts, ends, counts = self._split_slab(data[begin : begin + int(stops[-1])], stops)
            parts.append((starts + begin, ends + begin, counts))
        starts, ends, counts = map(np.concatenate, zip(*parts, strict=True))
        further = np.flatnonzero(np.repeat(np.broadcast_to(cut, len(counts)), counts))
        return cut_further(without_gaps(data, starts, ends), further, counts)

    def _split_slab(
        self, data: bytes, stops: Offsets
    ) -> tuple[Offsets, Offsets, NDArray[np.int64]]:
        """Where each sentence of lines starts and ends, and how many each line has.

        "It is. So!\\0Yes",  lines end at [10 14]  ->  [0 7 11],  [6 10 14],  [2 1]
        """
        ends, followers = self._breaks(data)
        at = np.searchsorted(ends, stops, side="right")
        ends = np.insert(ends, at, stops)
        starts = np.insert(np.insert(followers, at, stops + 1), 0, 0)[:-1]
        # Closing marks may be all that follows the last break.
        final = at + np.arange(len(at))
        is_there = np.ones(len(ends), bool)
        is_there[final] = starts[final] < ends[final]
        counts = np.diff(np.cumsum(is_there)[final], prepend=0)
        return starts[is_there], ends[is_there], counts

    def _breaks(self, data: bytes) -> tuple[Offsets, Offsets]:
        """The end of the sentence before each break, and the start of the one after it."""
        candidates = find_candidates(data)
        breaks = self._is_break(data, candidates)
        ends, followers = candidates.ends[breaks], candidates.followers[breaks]
        strays = np.flatnonzero(IS_STRAY[np.frombuffer(data, np.uint8)[followers]])
        stops = np.append(ends, len(data))[strays + 1]
        for i, stop in zip(strays.tolist(), stops.tolist(), strict=True):
            if stray := STRAY.match(data, int(followers[i]), stop):
                ends[i], followers[i] = stray.end(1), stray.end()
        return ends, followers

    def _is_break(self, data: bytes, candidates: Candidates) -> NDArray[np.bool_]:
        """Whether a sentence ends at each candidate."""
        chunks, lowered, is_word, certain = chunks_of(data, candidates)
        certain &= self._rules.ends_at_lone_marks
        certain |= is_word & ~np.asarray(pc.is_in(lowered, value_set=self._known_words))
        rest = np.flatnonzero(~certain)
        rare = chunks.take(pa.array(rest)).dictionary_encode()
        distinct = [self._rules.ending_of(chunk) for chunk in rare.dictionary.to_pylist()]
        of_rest = rare.indices.to_numpy()
        certain[rest] = np.array([ending is CERTAIN for ending in distinct], bool)[of_rest]
        undecided = np.flatnonzero(~certain)
        places = zip(*(column[undecided].tolist() for column in candidates), strict=True)
        certain[undecided] = [self._rules.is_end(data, *place) for place in places]
        return certain


def cut_further(
    sentences: Sentences, rows: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[Sentences, NDArray[np.int64]]:
    """These sentences cut at the ends of other scripts, too, and the counts of all then."""
    parts = {row: spans for row in rows.tolist() if (spans := _parts(sentences, row))}
    if not parts:
        return sentences, counts
    lengths = np.ones(len(sentences), np.int64)
    lengths[list(parts)] = list(map(len, parts.values()))
    offsets = offsets_of(lengths)
    starts, ends = np.repeat(sentences.starts, lengths), np.repeat(sentences.ends, lengths)
    for row, spans in parts.items():
        at = slice(offsets[row], offsets[row + 1])
        starts[at], ends[at] = np.transpose(spans)
    return without_gaps(sentences.data, starts, ends), np.diff(offsets[offsets_of(counts)])


def _parts(sentences: Sentences, row: int) -> list[list[int]]:
    """Where the parts of the sentence start and end; nothing if it is not cut."""
    start, end = int(sentences.starts[row]), int(sentences.ends[row])
    if (data := sentences.data[start:end]).isascii():
        return []
    text = data.decode()
    spans = cut_sentence(text)
    if spans == [(0, len(text))]:
        return []
    edges = [0, *(edge for span in spans for edge in span)]
    sizes = [len(text[a:b].encode()) for a, b in pairwise(edges)]
    parts: list[list[int]] = (start + np.cumsum(sizes)).reshape(-1, 2).tolist()
    return parts


def _slabs(data: bytes) -> Iterator[tuple[int, Offsets]]:
    """Where each slab of lines begins, and where each of its lines ends in it."""
    inside = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(SEPARATOR))
    stops = np.append(inside, len(data)) if data else inside
    last = np.searchsorted(stops, np.arange(SLAB_BYTES, len(data), SLAB_BYTES))
    for first, stop in pairwise(np.unique([0, *(last + 1), len(stops)]).tolist()):
        begin = int(stops[first - 1]) + 1 if first else 0
        yield begin, stops[first:stop] - begin
