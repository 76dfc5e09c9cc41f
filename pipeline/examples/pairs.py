"""Sentences to pairs: which stretch of tokens is A, which is B, and whether B is random.

    segments    BERT's own (Devlin et al. 2018, appendix A.2): sentences of a document are packed up
                to the target length and cut in two at a random sentence; in half of the pairs the
                second part is replaced by a stretch of another document, and the sentences so
                replaced begin the next pair
    sentences   each two neighbours of a paragraph make one pair, and the first of them makes a
                second pair with a random sentence of another document
    none        stretches of one document as long as fits, without a B

All documents of a bucket advance together: step c makes the c-th pair of every document that has
one, so a step is a few vector operations however many documents there are.

A stretch of a single sentence has no second part: its B is always random. Google's and NVIDIA's
code let these forced pairs push the share of random pairs to 55 %; here the free choices lean the
other way until the share is one half, and what cannot be balanced is dropped and counted.
"""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import UInt64Array, random_bits, uniform_below, with_probability
from pipeline.common.ragged import Offsets, offsets_of, slice_indices
from pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, NO_PAIR
from pipeline.examples.bucket_documents import BucketDocuments

# Random pairs for each pair that follows, at most: a share of 51 %.
MAX_RANDOM_PER_FOLLOWING = 1.04

# The c-th pair of a document draws from its own lanes.
LANES = 9
SHORT, TARGET, SPLIT, RANDOM, DOCUMENT, SENTENCE, CUT_A, CUT_B, SURPLUS = range(LANES)


@dataclass(frozen=True)
class Pairs:
    """R pairs as stretches [start, stop) of the bucket's tokens, and where they come from."""

    a_start: Offsets
    a_stop: Offsets
    b_start: Offsets
    b_stop: Offsets
    next_sentence_label: NDArray[np.int8]
    document_a: Offsets  # index into Documents
    document_b: Offsets

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """The given rows, in the given order (indices, a boolean mask or a slice)."""
        return type(self)(*(getattr(self, column.name)[rows] for column in fields(self)))


def make_pairs(
    documents: BucketDocuments,
    *,
    pairs: str,
    key: UInt64Array,
    max_seq_length: int,
    short_seq_prob: float,
) -> tuple[Pairs, Counter[str]]:
    """The pairs of a bucket in document order, and what was left out by reason.

    `key` is the uint64 key of the stream to draw from; `pairs` one of the three kinds above.
    """
    if pairs == "none":
        return _spans(documents, max_tokens=max_seq_length - 2), Counter()
    if pairs == "sentences":
        return _sentences(documents, key=key, max_tokens=max_seq_length - 3)
    return _Segments(documents, key, max_seq_length - 3, short_seq_prob).make()


def _spans(documents: BucketDocuments, *, max_tokens: int) -> Pairs:
    starts = documents.sentence_offsets[documents.document_offsets]
    lengths = np.diff(starts)
    counts = -(-lengths // max_tokens)
    document = np.repeat(np.arange(len(documents)), counts)
    ordinal = slice_indices(np.zeros(len(counts), np.int64), counts)
    a_start = starts[document] + ordinal * max_tokens
    a_stop = np.minimum(a_start + max_tokens, starts[document + 1])
    label = np.full(len(document), NO_PAIR, dtype=np.int8)
    return Pairs(a_start, a_stop, a_stop, a_stop, label, document, document)


def _sentences(
    documents: BucketDocuments, *, key: UInt64Array, max_tokens: int
) -> tuple[Pairs, Counter[str]]:
    sentences = documents.sentence_offsets
    first = np.flatnonzero(np.diff(documents.paragraphs) == 0)
    document = np.searchsorted(documents.document_offsets, first, side="right") - 1
    in_document = np.diff(documents.document_offsets)[document]
    elsewhere = len(sentences) - 1 - in_document
    # A random sentence of the bucket, stepping over the document of A.
    draws = uniform_below(random_bits(key, first, SENTENCE), np.maximum(elsewhere, 1))
    other = draws + in_document * (draws >= documents.document_offsets[document])
    b = np.stack([first + 1, np.where(elsewhere > 0, other, first)], axis=1).ravel()
    a = np.repeat(first, 2)
    label = np.tile(np.array([B_FOLLOWS_A, B_IS_RANDOM], np.int8), len(first))
    length_a, length_b = _fit(
        np.diff(sentences)[a], np.diff(sentences)[b], max_tokens=max_tokens
    )  # too long: the end of A and the start of B are kept
    made = Pairs(
        a_start=sentences[a + 1] - length_a,
        a_stop=sentences[a + 1],
        b_start=sentences[b],
        b_stop=sentences[b] + length_b,
        next_sentence_label=label,
        document_a=np.repeat(document, 2),
        document_b=np.searchsorted(documents.document_offsets, b, side="right") - 1,
    )
    kept = length_a + length_b
    whole = np.diff(sentences)[a] + np.diff(sentences)[b]
    if len(documents) < 2:  # nobody to be random with
        follows = made.next_sentence_label == B_FOLLOWS_A
        made, kept, whole = made.take(follows), kept[follows], whole[follows]
    lonely = len(np.unique(documents.paragraphs)) - len(np.unique(documents.paragraphs[first]))
    cut = int((whole - kept).sum())
    return made, Counter({"single_sentence_paragraph": lonely, "cut_tokens": cut})


@dataclass
class _Segments:
    """BERT's packing, for all documents of a bucket at once."""

    documents: BucketDocuments
    key: UInt64Array
    max_tokens: int
    short_seq_prob: float
    made: int = 0
    made_random: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def make(self) -> tuple[Pairs, Counter[str]]:
        cursor = self.documents.document_offsets[:-1].copy()  # the next sentence of each document
        steps = [no_pairs()]
        active = np.flatnonzero(cursor < self.documents.document_offsets[1:])
        while len(active):
            pairs, cursor[active] = self._step(len(steps) - 1, active, cursor[active])
            steps.append(pairs)
            active = active[cursor[active] < self.documents.document_offsets[active + 1]]
        pairs = Pairs(*(np.concatenate([getattr(s, c.name) for s in steps]) for c in fields(Pairs)))
        pairs = self._cut(self._balance(pairs.take(np.argsort(pairs.document_a, kind="stable"))))
        return pairs, self.dropped

    def _step(self, ordinal: int, document: Offsets, start: Offsets) -> tuple[Pairs, Offsets]:
        """One pair of each document from sentence `start` on, and where its next one begins."""
        draw = [random_bits(self.key, document, LANES * ordinal + lane) for lane in range(CUT_A)]
        offsets = self.documents.sentence_offsets
        target = self._target(draw[SHORT], draw[TARGET])
        stop = self._fill(start, target, document)
        size = stop - start
        middle = start + 1 + uniform_below(draw[SPLIT], np.maximum(size - 1, 1))
        is_random = self._choose_random(draw[RANDOM], forced=size == 1)
        b_start, b_stop = middle, stop
        other = document
        if len(self.documents) > 1:
            other, at, to = self._elsewhere(
                draw[DOCUMENT],
                draw[SENTENCE],
                document,
                target - (offsets[middle] - offsets[start]),
            )
            other = np.where(is_random, other, document)
            b_start, b_stop = np.where(is_random, at, middle), np.where(is_random, to, stop)
        pairs = Pairs(
            a_start=offsets[start],
            a_stop=offsets[middle],
            b_start=offsets[b_start],
            b_stop=offsets[b_stop],
            next_sentence_label=np.where(is_random, B_IS_RANDOM, B_FOLLOWS_A).astype(np.int8),
            document_a=document,
            document_b=other,
        )
        # The sentences that a random B replaced are not lost: the next pair begins with them.
        return self._without_empty_b(pairs), np.where(is_random, middle, stop)

    def _target(self, short: UInt64Array, length: UInt64Array) -> Offsets:
        # Some examples are short on purpose: fine-tuning will see short ones.
        is_short = with_probability(short, self.short_seq_prob)
        return np.where(is_short, 2 + uniform_below(length, self.max_tokens - 1), self.max_tokens)

    def _fill(self, start: Offsets, target: Offsets, document: Offsets) -> Offsets:
        """The sentence after the one that reaches `target` tokens, inside the document."""
        offsets = self.documents.sentence_offsets
        reached = np.searchsorted(offsets, offsets[start] + np.maximum(target, 1))
        return np.minimum(reached, self.documents.document_offsets[document + 1])

    def _choose_random(self, words: UInt64Array, *, forced: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Half of all pairs so far, as far as the free choices can make it."""
        if len(self.documents) < 2:
            return np.zeros(len(forced), dtype=bool)
        free = len(forced) - int(forced.sum())
        wanted = (self.made + len(forced)) / 2 - self.made_random - (len(forced) - free)
        share = min(max(wanted / max(free, 1), 0.0), 1.0)
        is_random = forced | with_probability(words, share)
        self.made += len(forced)
        self.made_random += int(is_random.sum())
        return is_random

    def _elsewhere(
        self,
        document_words: UInt64Array,
        sentence_words: UInt64Array,
        document: Offsets,
        target: Offsets,
    ) -> tuple[Offsets, Offsets, Offsets]:
        """Another document, and the sentences from a random one of it that reach `target`."""
        other = uniform_below(document_words, len(self.documents) - 1)
        other += other >= document
        first = self.documents.document_offsets[other]
        sentences = self.documents.document_offsets[other + 1] - first
        start = first + uniform_below(sentence_words, sentences)
        return other, start, self._fill(start, target, other)

    def _without_empty_b(self, pairs: Pairs) -> Pairs:
        """A bucket of one document has no B for a stretch of a single sentence."""
        keep = pairs.b_stop > pairs.b_start
        self.dropped["no_other_document"] += int((~keep).sum())
        return pairs.take(keep)

    def _balance(self, pairs: Pairs) -> Pairs:
        is_random = np.flatnonzero(pairs.next_sentence_label == B_IS_RANDOM)
        allowed = int((len(pairs) - len(is_random)) * MAX_RANDOM_PER_FOLLOWING)
        drawn = np.argsort(random_bits(self.key, is_random, SURPLUS), kind="stable")
        surplus = is_random[drawn[allowed:]]
        self.dropped["surplus_random_pair"] += len(surplus)
        return pairs.take(np.setdiff1d(np.arange(len(pairs)), surplus))

    def _cut(self, pairs: Pairs) -> Pairs:
        """Too long: the longer part loses tokens, at its front and its back in random shares.

        (Google's code flips a coin for each token; here one draw says how many go at the front.)
        """
        row = np.arange(len(pairs))
        length_a, length_b = pairs.a_stop - pairs.a_start, pairs.b_stop - pairs.b_start
        keep_a, keep_b = _fit(length_a, length_b, max_tokens=self.max_tokens)
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


def _fit(length_a: Offsets, length_b: Offsets, *, max_tokens: int) -> tuple[Offsets, Offsets]:
    """Lengths that fit together: the longer one gives way, then both alike (a tie costs B)."""
    half_b = max_tokens // 2
    half_a = max_tokens - half_b
    keep_a = np.minimum(length_a, np.maximum(half_a, max_tokens - length_b))
    keep_b = np.minimum(length_b, np.maximum(half_b, max_tokens - length_a))
    return keep_a, keep_b


def no_pairs() -> Pairs:
    """No rows."""
    none = offsets_of([])[:0]
    return Pairs(none, none, none, none, none.astype(np.int8), none, none)
