"""Where A and B stand in their documents, and whether they may begin and end there.

With M tokens for A and B together, L = M + 3 for a row with [CLS] and [SEP]s:

    none        A is the next L - 2 tokens of its document, or its end
    sentences   A is a sentence, B the next one of the paragraph or any other sentence
    segments    A and B are whole sentences, as few as reach M tokens together; B follows A
    order       the same, at least one sentence each; B follows A, or A follows B where the label
                is 1

Only a pair that is too long is cut, to L tokens exactly, and a part is never cut below its half of
M (the larger half is A's). `sentences` keeps the end of A and the start of B.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.common.ragged import Offsets, offsets_of, slice_indices
from pipeline.config import DataConfig
from pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, B_IS_SWAPPED, Examples
from pipeline.examples.bucket_documents import BucketDocuments
from pipeline.verify.findings import Findings
from pipeline.verify.span_index import WIDEST, SpanIndex, Spans, gram_widths

CHUNK_TOKENS = 1 << 22  # of the documents that are looked into at once

Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]


def check_spans(
    examples: Examples,
    documents: BucketDocuments,
    *,
    rows: Rows,
    documents_a: Offsets,
    documents_b: Offsets,
    config: DataConfig,
    faults: Findings,
) -> None:
    """Note which of the `rows` are not made of their documents, or not by the rules.

    `documents_a` and `documents_b` [R] are indices into `documents`, for the `rows` at least. The
    rows must be such that they can be taken apart.
    """
    originals = examples.unmasked().input_ids
    label = examples.next_sentence_label
    is_order = config.pairs == "order"
    follows = ((label == B_FOLLOWS_A) | is_order) & (documents_a == documents_b)
    parts_a = _parts_of(examples, documents_a, config, side=0)
    parts_b = _parts_of(examples, documents_b, config, side=1)
    if is_order:
        is_swapped = follows & (label == B_IS_SWAPPED)
        parts_a, parts_b = (
            parts_a.or_else(parts_b, is_swapped),
            parts_b.or_else(parts_a, is_swapped),
        )
    found: dict[str, list[Rows]] = defaultdict(list)
    for first, stop in _chunks(documents):
        chunk = _Chunk.of(documents, first, stop, config)
        a_here = rows[(documents_a[rows] >= first) & (documents_a[rows] < stop)]
        b_here = rows[(documents_b[rows] >= first) & (documents_b[rows] < stop)]
        parts = _Parts.concatenate(
            parts_a.take(a_here[follows[a_here]]),
            parts_b.take(a_here[follows[a_here]]),
            parts_a.take(a_here[~follows[a_here]]),
            parts_b.take(b_here[(label[b_here] >= B_FOLLOWS_A) & ~follows[b_here]]),
        )
        pairs = int(follows[a_here].sum())
        for what, where in chunk.faults(originals.values, parts, pairs):
            found[what].append(where)
    for what, wheres in found.items():
        faults.note(np.concatenate(wheres), what)


@dataclass(frozen=True)
class _Parts:
    """N As and Bs of rows."""

    row: Rows
    side: Rows  # 0: A, 1: B
    start: Offsets  # in the ids of the shard
    length: Offsets
    document: Offsets
    may_be_cut: Flags
    #: The last sentence of the part begins within so many tokens of its first one.
    reach: Offsets

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Rows) -> "_Parts":
        return _Parts(*(column[rows] for column in vars(self).values()))

    def or_else(self, other: "_Parts", where: Flags) -> "_Parts":
        """These parts, and `where` a flag is set those of `other`."""
        columns = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Parts(*(np.where(where, theirs, ours) for ours, theirs in columns))

    @classmethod
    def concatenate(cls, *parts: "_Parts") -> "_Parts":
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def stretches(self, ids: NDArray[np.integer]) -> Spans:
        return Spans(ids, self.start, self.length)


def _parts_of(examples: Examples, document: Offsets, config: DataConfig, *, side: int) -> _Parts:
    """The As, or the Bs, of all rows."""
    rows = np.arange(len(examples))
    row_lengths, length_a = examples.input_ids.lengths, examples.length_a.astype(np.int64)
    most = config.max_seq_length - 3
    half = most // 2 if side else most - most // 2
    length = row_lengths - length_a - 1 if side else length_a - 2
    reach = np.full(len(rows), most)
    if side and config.pairs != "order":  # a random B is packed to what A leaves
        is_random = examples.next_sentence_label == B_IS_RANDOM
        reach = np.where(is_random, np.maximum(most - (length_a - 2), 1), most)
    return _Parts(
        row=rows,
        side=np.full(len(rows), side),
        start=examples.input_ids.offsets[:-1] + (length_a if side else 1),
        length=length,
        document=document,
        may_be_cut=(row_lengths == config.max_seq_length) & (length >= half),
        reach=reach,
    )


def _chunks(documents: BucketDocuments) -> Iterator[tuple[int, int]]:
    """Ranges of documents of about CHUNK_TOKENS tokens."""
    tokens = documents.sentence_offsets[documents.document_offsets]
    wanted = np.arange(0, tokens[-1] + CHUNK_TOKENS, CHUNK_TOKENS)
    edges = np.unique(np.append(np.searchsorted(tokens, wanted[:-1]), len(documents)))
    yield from pairwise(edges.tolist())


@dataclass(frozen=True)
class _Chunk:
    """Some documents: D documents of S sentences, their ids [T] and where everything begins."""

    text: NDArray[np.integer]  # [T]
    sentences: Offsets  # [S + 1]
    paragraphs: NDArray[np.int64]  # [S]
    documents: Offsets  # [D + 1]
    first: int  # the number of the first document
    config: DataConfig

    @classmethod
    def of(cls, documents: BucketDocuments, first: int, stop: int, config: DataConfig) -> "_Chunk":
        begin, end = documents.document_offsets[[first, stop]]
        offsets = documents.sentence_offsets[begin : end + 1]
        edges = documents.sentence_offsets[documents.document_offsets[first : stop + 1]]
        return cls(
            text=documents.ids[offsets[0] : offsets[-1]],
            sentences=offsets - offsets[0],
            paragraphs=documents.paragraphs[begin:end],
            documents=edges - offsets[0],
            first=first,
            config=config,
        )

    def faults(
        self, ids: NDArray[np.integer], parts: _Parts, pairs: int
    ) -> Iterator[tuple[str, Rows]]:
        """What is wrong, and in which rows.

        Of the N parts the first `pairs` are As, the next as many are the Bs that follow them, and
        each of the others stands for itself.
        """
        finder = SpanIndex(
            self.text, parts.stretches(ids), anchors=self._anchors(), free_width=self._free_width()
        )
        firsts = np.arange(pairs)
        lone = np.arange(2 * pairs, len(parts))
        bad_pairs = firsts[self._first_pair(finder, parts, pairs) < 0]
        bad_lone = lone[self._first_fit(finder, parts, lone) < 0]
        bad = np.concatenate([bad_pairs, bad_pairs + pairs, bad_lone])
        if len(bad):
            yield from self._diagnosis(ids, parts.take(bad))

    def _diagnosis(self, ids: NDArray[np.integer], parts: _Parts) -> Iterator[tuple[str, Rows]]:
        """Of parts that are not where they should be, what is the matter."""
        everywhere = SpanIndex(
            self.text, parts.stretches(ids), anchors=offsets_of([]), free_width=1
        )
        which = np.arange(len(parts))
        low, high = self._bounds(parts, which)
        stands = everywhere.first(which, low, high, lambda _, position: position >= 0) >= 0
        for side, name in enumerate("AB"):
            rows = parts.row[~stands & (parts.side == side)]
            yield f"rows whose {name} is no stretch of its document", rows
        fits = self._first_fit(everywhere, parts, which) >= 0
        cut = parts.row[stands & ~fits]
        yield "rows cut against the rules", cut
        others = np.setdiff1d(parts.row[fits], parts.row[~fits])
        if self.config.pairs == "order":
            yield "rows whose A and B are not consecutive in the order of their label", others
        else:
            yield "rows whose B does not follow A", others

    def _first_fit(self, finder: SpanIndex, parts: _Parts, which: Rows) -> Offsets:
        low, high = self._bounds(parts, which)
        return finder.first(
            which, low, high, lambda at, position: self._fits(parts, which[at], position)
        )

    def _first_pair(self, finder: SpanIndex, parts: _Parts, pairs: int) -> Offsets:
        """Where the first As stand that have their B behind them, or -1."""

        def holds(which: Rows, position: Offsets) -> Flags:
            good = self._fits(parts, which, position)
            good[good] = self._next(finder, parts, which[good], position[good], pairs) >= 0
            return good

        low, high = self._bounds(parts, np.arange(pairs))
        return finder.first(np.arange(pairs), low, high, holds)

    def _next(
        self, finder: SpanIndex, parts: _Parts, a: Rows, place_a: Offsets, pairs: int
    ) -> Offsets:
        """Where the Bs of the As at `place_a` stand, or -1."""
        b = a + pairs
        stop = place_a + parts.length[a]
        # Between what is left of A and what is left of B there is the end of a sentence.
        low = self.sentences[np.searchsorted(self.sentences, stop)]
        _, high = self._bounds(parts, b)
        if self.config.pairs == "sentences":
            high = np.minimum(high, stop + 1)
        else:
            adjoins = ~(parts.may_be_cut[a] | parts.may_be_cut[b])
            high = np.where(adjoins, np.minimum(high, stop + 1), high)
        begin = self.sentences[self._sentence(place_a)]

        def holds(at: Rows, position: Offsets) -> Flags:
            last = self._sentence(position + parts.length[b[at]] - 1)
            in_reach = self.sentences[last] < begin[at] + self.config.max_seq_length - 3
            if self.config.pairs == "order":  # two sentences at least, however long
                in_reach |= last == self._sentence(begin[at]) + 1
            return self._fits(parts, b[at], position) & (
                in_reach | (self.config.pairs == "sentences")
            )

        return finder.first(b, low, high, holds)

    def _fits(self, parts: _Parts, which: Rows, position: Offsets) -> Flags:
        """Whether a part may begin and end where it does."""
        stop = position + parts.length[which]
        if self.config.pairs == "none":
            return self._is_span(parts, which, position)
        first, last = self._sentence(position), self._sentence(stop - 1)
        begins, ends = self.sentences[first] == position, self.sentences[last + 1] == stop
        fits = (begins & ends) | parts.may_be_cut[which]
        if self.config.pairs in ("segments", "order"):
            return fits & (self.sentences[last] < self.sentences[first] + parts.reach[which])
        is_a = parts.side[which] == 0
        fits &= (first == last) & np.where(is_a, ends, begins)
        following = np.minimum(first + 1, len(self.paragraphs) - 1)
        has_next = (following > first) & (self.paragraphs[following] == self.paragraphs[first])
        return fits & (has_next | ~is_a)

    def _is_span(self, parts: _Parts, which: Rows, position: Offsets) -> Flags:
        most = self.config.max_seq_length - 2
        document = parts.document[which] - self.first
        at_end = position + parts.length[which] == self.documents[document + 1]
        begins = (position - self.documents[document]) % most == 0
        return begins & (at_end | (parts.length[which] == most))

    def _bounds(self, parts: _Parts, which: Rows) -> tuple[Offsets, Offsets]:
        """The places that a part can have inside its document."""
        document = parts.document[which] - self.first
        return self.documents[document], self.documents[document + 1] - parts.length[which] + 1

    def _sentence(self, position: Offsets) -> Offsets:
        return np.searchsorted(self.sentences, position, side="right") - 1

    def _anchors(self) -> Offsets:
        """Where a part begins that was not cut at its front."""
        if self.config.pairs != "none":
            return self.sentences[:-1]
        most = self.config.max_seq_length - 2
        counts = -(-np.diff(self.documents) // most)
        ordinal = slice_indices(np.zeros(len(counts), np.int64), counts)
        return np.repeat(self.documents[:-1], counts) + most * ordinal

    def _free_width(self) -> int:
        """A part with a narrower gram is shorter than half a row: it was not cut."""
        if self.config.pairs == "none":
            return WIDEST + 1
        half = np.array([(self.config.max_seq_length - 3) // 2])
        return int(gram_widths(half)[0])
