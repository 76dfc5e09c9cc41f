"""Pairs of segments: sentences of a document, packed up to a target length and split in two.

    segments  in half of the pairs B is replaced by a segment of another document, and the sentences
              it replaced begin the next pair (Devlin et al. 2018, appendix A.2)
    order     in half of the pairs A and B are swapped (Lan et al. 2019, section 3.1)

All documents of a bucket advance together: step c makes the c-th pair of every document that has
one, so a step is a few vector operations however many documents there are.

`segments`: a single sentence that fills the target cannot be split, so its B is always random. In
Google's and NVIDIA's code these forced pairs raise the fraction of random pairs to 55 %; here the
free choices compensate until it is one half, and any surplus is dropped and counted.
`order`: such a sentence is packed with the next one; the last of a document is dropped and counted.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field

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
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, B_IS_SWAPPED
from clozeline.pipeline.examples.bucket_documents import BucketDocuments
from clozeline.pipeline.examples.pair_columns import Pairs, fit_lengths

# Maximum number of random pairs per pair that follows: 51 % random.
MAX_RANDOM_PER_FOLLOWING = 1.04

# The counters of the random bits for the c-th pair of a document begin at COUNTERS * c.
COUNTERS = 9
SHORT, TARGET, SPLIT, NEGATIVE, DOCUMENT, SENTENCE, CUT_A, CUT_B, SURPLUS = range(COUNTERS)


@dataclass
class _SegmentPairs(ABC):
    """Packs the sentences of all documents of a bucket; a subclass makes the pairs of a step."""

    documents: BucketDocuments
    key: UInt64Array
    max_tokens: int
    short_seq_prob: float
    dropped: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_bucket(
        cls,
        documents: BucketDocuments,
        key: UInt64Array,
        max_seq_length: int,
        short_seq_prob: float,
    ) -> tuple[Pairs, Counter[str]]:
        """All pairs, and what was dropped by reason."""
        return cls(documents, key, max_seq_length - 3, short_seq_prob).make()

    def make(self) -> tuple[Pairs, Counter[str]]:
        cursor = self.documents.document_offsets[:-1].copy()  # the next sentence of each document
        steps = [Pairs.empty()]
        active = np.flatnonzero(cursor < self.documents.document_offsets[1:])
        while len(active):
            pairs, cursor[active] = self._step(len(steps) - 1, active, cursor[active])
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
        return Pairs(
            a_start,
            a_start + keep_a,
            b_start,
            b_start + keep_b,
            pairs.next_sentence_label,
            pairs.document_a,
            pairs.document_b,
        )


@dataclass
class RandomSegments(_SegmentPairs):
    """`--pairs segments`."""

    made: int = 0
    made_random: int = 0

    def _step(self, ordinal: int, document: Offsets, start: Offsets) -> tuple[Pairs, Offsets]:
        bits = self._random_bits(ordinal, document)
        offsets = self.documents.sentence_offsets
        target = self._target(bits)
        stop = self._fill(start, target, document)
        size = stop - start
        middle = start + 1 + uniform_below(bits[SPLIT], np.maximum(size - 1, 1))
        is_random = self._choose_random(bits[NEGATIVE], forced=size == 1)
        b_start, b_stop, document_b = middle, stop, document
        if len(self.documents) > 1:
            rest = target - (offsets[middle] - offsets[start])
            other, first, last = self._elsewhere(bits, document, rest)
            document_b = np.where(is_random, other, document)
            b_start, b_stop = np.where(is_random, first, middle), np.where(is_random, last, stop)
        pairs = Pairs(
            a_start=offsets[start],
            a_stop=offsets[middle],
            b_start=offsets[b_start],
            b_stop=offsets[b_stop],
            next_sentence_label=np.where(is_random, B_IS_RANDOM, B_FOLLOWS_A).astype(np.int8),
            document_a=document,
            document_b=document_b,
        )
        # The sentences that a random B replaced are not lost: the next pair begins with them.
        return self._without_empty_b(pairs), np.where(is_random, middle, stop)

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

    def _without_empty_b(self, pairs: Pairs) -> Pairs:
        """Drop pairs without a B: a lone document has no random one for a single sentence."""
        keep = pairs.b_stop > pairs.b_start
        self.dropped["no_other_document"] += int((~keep).sum())
        return pairs.take(keep)

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
        begin, border, end = (
            self.documents.sentence_offsets[edge] for edge in (start, middle, stop)
        )
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
