"""Sentences to pairs: which span of tokens is A, which is B, and how they are related.

segments    BERT's own (Devlin et al. 2018, appendix A.2): A and B are consecutive segments of a
            document, or B is a random segment of another document (label 1)
order       sentence order prediction (ALBERT; Lan et al. 2019, section 3.1): consecutive
            segments of a document, in order or swapped (label 1)
sentences   any two adjacent sentences of a paragraph make one pair, and the first of them makes
            a second pair with a random sentence of another document (label 1)
none        spans of one document, as long as possible, without a B

`packed` is in packed_rows.py.

"s1 s2 s3"  ->  segments  [s1 s2, s3, 0]    [s1, x7 x8, 1]
                order     [s1 s2, s3, 0]    [s2 s3, s1, 1]
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from clozeline.pipeline.common.counter_rng import UInt64Array, random_bits, uniform_below
from clozeline.pipeline.config import PairScheme
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, NO_PAIR
from clozeline.pipeline.examples.bucket_documents import BucketDocuments
from clozeline.pipeline.examples.packed_rows import full_spans
from clozeline.pipeline.examples.pair_columns import Pairs, fit_lengths
from clozeline.pipeline.examples.segment_pairs import (
    SENTENCE,
    RandomSegments,
    SwappedSegments,
)

MakePairs = Callable[[BucketDocuments, UInt64Array, int, float], tuple[Pairs, Counter[str]]]


def make_pairs(
    documents: BucketDocuments,
    *,
    pairs: PairScheme,
    key: UInt64Array,
    max_seq_length: int,
    short_seq_prob: float,
) -> tuple[Pairs, Counter[str]]:
    """The pairs of a bucket in document order, and what was dropped by reason.

    `key` is the uint64 key of the random stream; `pairs` names one of the schemes above.
    """
    return SCHEMES[pairs](documents, key, max_seq_length, short_seq_prob)


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


SCHEMES: dict[PairScheme, MakePairs] = {
    "segments": RandomSegments.of_bucket,
    "order": SwappedSegments.of_bucket,
    "sentences": _adjacent_sentences,
    "none": _full_spans,
}
