"""Test rows that have a near copy among the training rows.

    test    "good lamp I would buy it again"           3 shingles of 5 words
    train   "Good lamp, I would buy it again! Ann"     has all 3 of them: a near copy

A test row has a near copy if one training row has at least 0.8 of its word 5-grams (containment;
Broder 1997). Words are those by which `shards --deduplicate near` compares documents.
"""

from collections.abc import Sequence
from itertools import pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.common.ragged import slice_indices
from clozeline.pipeline.curation.signatures import SHINGLE_WORDS
from clozeline.pipeline.curation.words import hash_ngrams, hash_words
from clozeline.train.labelled.rows import Rows

CONTAINMENT = 0.8
CHUNK = 50_000  # training rows at a time; reviews of 80 words make 60 MB of shingles
MOST_PAIRS = 5_000_000  # of shingles at a time, or those of one test row


def near_duplicates(test: Sequence[str], train: Sequence[str]) -> NDArray[np.bool_]:
    """Which test texts have a near copy among the training texts, bool [test texts]."""
    every, test, train = test, list(dict.fromkeys(test)), list(dict.fromkeys(train))
    test_rows, test_hashes = shingles(test)
    needed = CONTAINMENT * np.bincount(test_rows, minlength=len(test))
    found = np.zeros(len(test), dtype=np.bool_)
    for start in range(0, len(train), CHUNK):
        rows, hashes = shingles(train[start : start + CHUNK])
        # One row cannot have what the whole chunk lacks; few test rows are left after this.
        # Not by a table, which numpy 2.0 tries to index with 64-bit hashes.
        is_known = np.isin(test_hashes, hashes, kind="sort")
        known = np.bincount(test_rows[is_known], minlength=len(test))
        left = is_known & (known >= needed)[test_rows]
        test_row, shared = _shared(test_rows[left], test_hashes[left], rows, hashes)
        found[test_row[shared >= needed[test_row]]] = True
    row_of = {text: row for row, text in enumerate(test)}
    return found[[row_of[text] for text in every]]


def shingles(texts: Sequence[str]) -> tuple[Rows, UInt64Array]:
    """The distinct word 5-grams of each text: its row and a 64-bit hash, both [number of them].

    A text of fewer than 5 words is one shingle; a text without words has none.
    """
    words = hash_words([text.replace("\0", " ") for text in texts])  # NUL would end a text
    found = hash_ngrams(words, SHINGLE_WORDS, pad=True)
    rows = np.repeat(np.arange(len(texts)), found.lengths)
    order = np.lexsort((found.values, rows))
    rows, hashes = rows[order], found.values[order]
    is_new = np.append(True, (rows[1:] != rows[:-1]) | (hashes[1:] != hashes[:-1]))[: len(rows)]
    return rows[is_new], hashes[is_new]


def _shared(
    test_rows: Rows, test_hashes: UInt64Array, rows: Rows, hashes: UInt64Array
) -> tuple[Rows, Rows]:
    """Pairs of a test row and a training row: the test row, and how many shingles they share.

    `test_rows` ascend. Texts with common phrases make many pairs: some rows are done at a time.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, rows = hashes[order], rows[order]
    first = np.searchsorted(hashes, test_hashes, "left")
    counts = np.searchsorted(hashes, test_hashes, "right") - first
    part = np.cumsum(np.bincount(test_rows, counts))[test_rows] // MOST_PAIRS
    borders = [0, *np.flatnonzero(np.diff(part)) + 1, len(test_rows)]
    found = []
    for some in starmap(slice, pairwise(borders)):
        of_training = rows[slice_indices(first[some], counts[some])]
        pairs = np.repeat(test_rows[some], counts[some]) * CHUNK + of_training
        found.append(np.unique(pairs, return_counts=True))
    pair, shared = map(np.concatenate, zip(*found, strict=True))
    return pair // CHUNK, shared
