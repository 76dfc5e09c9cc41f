"""Sentences to pairs: which span of tokens is A, which is B, and how they are related.

segments    BERT's own (Devlin et al. 2018, appendix A.2): A and B are consecutive segments of a
            document, or B is a random segment of another document (label 1), and the sentences it
            replaced begin the next pair
order       sentence order prediction (ALBERT; Lan et al. 2019, section 3.1): consecutive
            segments of a document, in order or swapped (label 1)
sentences   any two adjacent sentences of a paragraph make one pair, and the first of them makes
            a second pair with a random sentence of another document (label 1)
none        spans of one document, as long as possible, without a B

`packed` is in columns.py.

"s1 s2 s3"  ->  segments  [s1 s2, s3, 0]    [s1, x7 x8, 1]
                order     [s1 s2, s3, 0]    [s2 s3, s1, 1]

Segments are sentences packed up to a target length and split in two. All documents of a bucket
advance together: step c makes the c-th pair of every document that has one, so a step is a few
vector operations however many documents there are.

`segments`: a single sentence that fills the target cannot be split, so its B is always random. In
Google's and NVIDIA's code these forced pairs raise the fraction of random pairs to 55 %; here the
free choices compensate until it is one half, and any surplus is dropped and counted.
`order`: such a sentence is packed with the next one; the last of a document is dropped and counted.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import (
    UInt64Array,
    random_bits,
    random_bits_of_rows,
    row_keys,
    uniform_below,
    with_probability,
)
from clozeline.pipeline.common.ragged import Offsets
from clozeline.pipeline.config import PairScheme
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, B_IS_SWAPPED, NO_PAIR
from clozeline.pipeline.examples.columns import BucketDocuments, Pairs, fit_lengths, full_spans

MakePairs = Callable[[BucketDocuments, UInt64Array, int, float], tuple[Pairs, Counter[str]]]

# Maximum number of random pairs per pair that follows: 51 % random.
MAX_RANDOM_PER_FOLLOWING = 1.04

# The counters of the random bits for the c-th pair of a document begin at COUNTERS * c.
COUNTERS = 9
SHORT, TARGET, SPLIT, NEGATIVE, DOCUMENT, SENTENCE, CUT_A, CUT_B, SURPLUS = range(COUNTERS)


class _SegmentPairs(ABC):
    """Packs the sentences of all documents of a bucket; a subclass makes the pairs of a step."""

    def __init__(
        self,
        documents: BucketDocuments,
        key: UInt64Array,
        max_seq_length: int,
        short_seq_prob: float,
    ) -> None:
        self.documents, self.key, self.short_seq_prob = documents, key, short_seq_prob
        self.max_tokens = max_seq_length - 3  # without [CLS] and two [SEP]
        self.dropped: Counter[str] = Counter()

    def make(self) -> tuple[Pairs, Counter[str]]:
        """All pairs, and what was dropped by reason."""
        cursor = self.documents.document_offsets[:-1].copy()  # the next sentence of each document
        active = np.flatnonzero(cursor < self.documents.document_offsets[1:])
        steps: list[Pairs] = []
        while len(active) or not steps:  # an empty step has the dtypes
            pairs, cursor[active] = self._step(len(steps), active, cursor[active])
            steps.append(pairs)
            active = active[cursor[active] < self.documents.document_offsets[active + 1]]
        pairs = Pairs.concatenate(steps)
        pairs = pairs.take(np.argsort(pairs.document_a, kind="stable"))
        return self._cut(self._balance(pairs)), self.dropped

    @abstractmethod
    def _step(self, ordinal: int, document: Offsets, start: Offsets) -> tuple[Pairs, Offsets]:
        """One pair per document from sentence `start` on, and the start of the next pair."""

    def _balance(self, pairs: Pairs) -> Pairs:
        return pairs

    def _random_bits(self, ordinal: int, document: Offsets) -> list[UInt64Array]:
        """The random bits of the pairs, by counter, without those of `_balance` and `_cut`."""
        keys = row_keys(self.key, document)
        return [random_bits_of_rows(keys, COUNTERS * ordinal + which) for which in range(CUT_A)]

    def _target(self, bits: list[UInt64Array]) -> Offsets:
        # Some examples are short on purpose: fine-tuning will see short ones.
        is_short = with_probability(bits[SHORT], self.short_seq_prob)
        short = 2 + uniform_below(bits[TARGET], self.max_tokens - 1)
        return np.where(is_short, short, self.max_tokens)

    def _fill(self, start: Offsets, target: Offsets, document: Offsets) -> Offsets:
        """The end of the sentences from `start` that reach `target` tokens or their document's end.

        `start` and the result are sentence indices.
        """
        offsets = self.documents.sentence_offsets
        reached = np.searchsorted(offsets, offsets[start] + np.maximum(target, 1))
        return np.minimum(reached, self.documents.document_offsets[document + 1])

    def _cut(self, pairs: Pairs) -> Pairs:
        """Cut pairs that are too long: the longer part loses tokens, at its front and its back.

        (Google's code flips a coin for each token; here one number says how many go at the front.)
        """
        row = np.arange(len(pairs))
        length_a, length_b = pairs.a_stop - pairs.a_start, pairs.b_stop - pairs.b_start
        keep_a, keep_b = fit_lengths(length_a, length_b, self.max_tokens)
        front_a = uniform_below(random_bits(self.key, row, CUT_A), length_a - keep_a + 1)
        front_b = uniform_below(random_bits(self.key, row, CUT_B), length_b - keep_b + 1)
        self.dropped["cut_tokens"] += int((length_a - keep_a + length_b - keep_b).sum())
        a_start, b_start = pairs.a_start + front_a, pairs.b_start + front_b
        return replace(
            pairs,
            a_start=a_start,
            a_stop=a_start + keep_a,
            b_start=b_start,
            b_stop=b_start + keep_b,
        )


class RandomSegments(_SegmentPairs):
    """`--pairs segments`."""

    made = made_random = 0  #: pairs so far

    def _step(self, ordinal: int, document: Offsets, start: Offsets) -> tuple[Pairs, Offsets]:
        bits = self._random_bits(ordinal, document)
        offsets = self.documents.sentence_offsets
        target = self._target(bits)
        stop = self._fill(start, target, document)
        size = stop - start
        middle = start + 1 + uniform_below(bits[SPLIT], np.maximum(size - 1, 1))
        is_random = self._choose_random(bits[NEGATIVE], forced=size == 1)
        b_start, b_stop, document_b = middle.copy(), stop.copy(), document.copy()
        rows = np.flatnonzero(is_random)
        rest = (target - (offsets[middle] - offsets[start]))[rows]
        elsewhere = self._elsewhere([one[rows] for one in bits], document[rows], rest)
        document_b[rows], b_start[rows], b_stop[rows] = elsewhere
        pairs = Pairs(
            a_start=offsets[start],
            a_stop=offsets[middle],
            b_start=offsets[b_start],
            b_stop=offsets[b_stop],
            next_sentence_label=np.where(is_random, B_IS_RANDOM, B_FOLLOWS_A).astype(np.int8),
            document_a=document,
            document_b=document_b,
        )
        # A lone document has no random B for a single sentence.
        has_b = pairs.b_stop > pairs.b_start
        self.dropped["no_other_document"] += int((~has_b).sum())
        # The sentences that a random B replaced are not lost: the next pair begins with them.
        return pairs.take(has_b), np.where(is_random, middle, stop)

    def _choose_random(self, bits: UInt64Array, *, forced: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Make random pairs half of all pairs so far, as far as the free choices allow."""
        if len(self.documents) < 2:
            return np.zeros(len(forced), dtype=bool)
        num_forced = int(forced.sum())
        num_free = len(forced) - num_forced
        wanted = (self.made + len(forced)) / 2 - self.made_random - num_forced
        probability = min(max(wanted / max(num_free, 1), 0.0), 1.0)
        is_random = forced | with_probability(bits, probability)
        self.made += len(forced)
        self.made_random += int(is_random.sum())
        return is_random

    def _elsewhere(
        self, bits: list[UInt64Array], document: Offsets, target: Offsets
    ) -> tuple[Offsets, Offsets, Offsets]:
        """Another document, and sentences of it, from a random one on, that reach `target`."""
        other = uniform_below(bits[DOCUMENT], len(self.documents) - 1)
        other += other >= document  # skip the document of A
        first = self.documents.document_offsets[other]
        sentences = self.documents.document_offsets[other + 1] - first
        start = first + uniform_below(bits[SENTENCE], sentences)
        return other, start, self._fill(start, target, other)

    def _balance(self, pairs: Pairs) -> Pairs:
        is_random = np.flatnonzero(pairs.next_sentence_label == B_IS_RANDOM)
        allowed = int((len(pairs) - len(is_random)) * MAX_RANDOM_PER_FOLLOWING)
        order = np.argsort(random_bits(self.key, is_random, SURPLUS), kind="stable")
        surplus = is_random[order[allowed:]]
        self.dropped["surplus_random_pair"] += len(surplus)
        is_kept = np.ones(len(pairs), bool)
        is_kept[surplus] = False
        return pairs.take(np.flatnonzero(is_kept))


class SwappedSegments(_SegmentPairs):
    """`--pairs order`."""

    def _step(self, ordinal: int, document: Offsets, start: Offsets) -> tuple[Pairs, Offsets]:
        bits = self._random_bits(ordinal, document)
        stop = np.maximum(self._fill(start, self._target(bits), document), start + 2)
        stop = np.minimum(stop, self.documents.document_offsets[document + 1])
        middle = start + 1 + uniform_below(bits[SPLIT], np.maximum(stop - start - 1, 1))
        is_swapped = with_probability(bits[NEGATIVE], 0.5)
        offsets = self.documents.sentence_offsets
        begin, border, end = offsets[start], offsets[middle], offsets[stop]
        pairs = Pairs(
            a_start=np.where(is_swapped, border, begin),
            a_stop=np.where(is_swapped, end, border),
            b_start=np.where(is_swapped, begin, border),
            b_stop=np.where(is_swapped, border, end),
            next_sentence_label=np.where(is_swapped, B_IS_SWAPPED, B_FOLLOWS_A).astype(np.int8),
            document_a=document,
            document_b=document,
        )
        has_two = stop - start > 1
        self.dropped["lone_sentence"] += int((~has_two).sum())
        return pairs.take(has_two), stop


def _adjacent_sentences(
    documents: BucketDocuments, key: UInt64Array, max_seq_length: int, short_seq_prob: float
) -> tuple[Pairs, Counter[str]]:
    sentences = documents.sentence_offsets
    first = np.flatnonzero(np.diff(documents.paragraphs) == 0)
    document = np.searchsorted(documents.document_offsets, first, side="right") - 1
    in_document = np.diff(documents.document_offsets)[document]
    elsewhere = len(sentences) - 1 - in_document
    # A random sentence of the bucket, skipping those of A's document.
    other = uniform_below(random_bits(key, first, SENTENCE), np.maximum(elsewhere, 1))
    other = np.where(other >= documents.document_offsets[document], other + in_document, other)
    b = np.stack([first + 1, np.where(elsewhere > 0, other, first)], axis=1).ravel()
    a = np.repeat(first, 2)
    label = np.tile(np.array([B_FOLLOWS_A, B_IS_RANDOM], np.int8), len(first))
    # A pair that is too long keeps the end of A and the start of B.
    whole_a, whole_b = np.diff(sentences)[a], np.diff(sentences)[b]
    length_a, length_b = fit_lengths(whole_a, whole_b, max_seq_length - 3)
    made = Pairs(
        a_start=sentences[a + 1] - length_a,
        a_stop=sentences[a + 1],
        b_start=sentences[b],
        b_stop=sentences[b] + length_b,
        next_sentence_label=label,
        document_a=np.repeat(document, 2),
        document_b=np.searchsorted(documents.document_offsets, b, side="right") - 1,
    )
    cut = whole_a + whole_b - length_a - length_b
    if len(documents) < 2:  # there is no other document for a random B
        follows = made.next_sentence_label == B_FOLLOWS_A
        made, cut = made.take(follows), cut[follows]
    lone = len(np.unique(documents.paragraphs)) - len(np.unique(documents.paragraphs[first]))
    return made, Counter({"single_sentence_paragraph": lone, "cut_tokens": int(cut.sum())})


def _full_spans(
    documents: BucketDocuments, key: UInt64Array, max_seq_length: int, short_seq_prob: float
) -> tuple[Pairs, Counter[str]]:
    a_start, a_stop, document = full_spans(documents, max_seq_length - 2)
    label = np.full(len(document), NO_PAIR, dtype=np.int8)
    return Pairs(a_start, a_stop, a_stop, a_stop, label, document, document), Counter()


#: Each maps documents, the key of the random stream, max_seq_length and short_seq_prob to the
#: pairs of the bucket in document order, and what was dropped by reason.
SCHEMES: dict[PairScheme, MakePairs] = {
    "segments": lambda *bucket: RandomSegments(*bucket).make(),
    "order": lambda *bucket: SwappedSegments(*bucket).make(),
    "sentences": _adjacent_sentences,
    "none": _full_spans,
}
