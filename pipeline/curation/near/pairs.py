"""Near-duplicates: documents of one band key to pairs, pairs to edges, edges to components.

    key 7: a, b, c      ->  pairs  a b, a c, b c
    a b 0.93, a c 0.41  ->  edge   a b               (similarity 0.8)
    a b, b d            ->  b and d are dropped; the kept copy of both is a

A document is its id: a 64-bit mix of its text hash under a key of its own. The document with the
lowest id of a component is kept. Under the text hash itself, which decides the split, the lowest of
several would rarely be held out.
"""

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, random_bits, stream_key
from clozeline.pipeline.common.ragged import Ragged

#: Pairs of a document that shares a key with thousands: the next ones, and the first of all. Up to
#: 1 + NEIGHBORS documents are all compared with each other.
NEIGHBORS: Final = 16
FIRST: Final = 4

Indices = NDArray[np.int64]


def document_ids(high: UInt64Array, low: UInt64Array) -> UInt64Array:
    """The ids of documents, [D], from the halves of their hashes."""
    return random_bits(random_bits(stream_key(0, "near/kept"), high), low)


def candidate_pairs(
    keys: UInt64Array, following: UInt64Array, ids: UInt64Array
) -> tuple[Indices, Indices]:
    """Rows of the same key and different ids, each pair once for a key; the lower id is first.

    In a large group only rows that stand close together are paired, so those that also share the
    `following` band stand side by side: thousands of articles made from one template share many
    bands, but copies of one of them share nearly all.
    """
    order = np.lexsort((ids, following, keys))
    key, document = keys[order], ids[order]
    is_new = np.ones(len(order), np.bool_)  # the copies of a text are one document
    is_new[1:] = (key[1:] != key[:-1]) | (document[1:] != document[:-1])
    order, key = order[is_new], key[is_new]
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    first = np.repeat(starts, np.diff(np.append(starts, len(key))))
    rows = np.arange(len(key))
    left, right = [], []
    for ahead in range(1, NEIGHBORS + 1):
        later = rows[ahead:][first[ahead:] == first[: len(rows) - min(ahead, len(rows))]]
        left.append(later - ahead)
        right.append(later)
    for above in range(FIRST):
        far = rows[rows - first > NEIGHBORS + above]
        left.append(first[far] + above)
        right.append(far)
    one, other = order[np.concatenate(left)], order[np.concatenate(right)]
    is_lower = ids[one] < ids[other]
    return np.where(is_lower, one, other), np.where(is_lower, other, one)


def shingle_sets(shingles: Ragged) -> list[UInt64Array]:
    """Each row sorted, without repeats."""
    bounds = pairwise(shingles.offsets.tolist())
    return [np.unique(shingles.values[start:stop]) for start, stop in bounds]


def jaccard(one: UInt64Array, other: UInt64Array) -> float:
    """The exact similarity of two sets: |A & B| / |A | B|."""
    at = np.minimum(one.searchsorted(other), len(one) - 1)
    shared = np.count_nonzero(one[at] == other)
    return shared / (len(one) + len(other) - shared)


def components(left: UInt64Array, right: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """The ids that edges connect, sorted, and of each the lowest id it is connected with.

    Labels spread along the edges and then along themselves until nothing changes (Shiloach and
    Vishkin 1982): a few passes over the arrays, which take 50 bytes an edge.
    """
    ids, ends = np.unique(np.concatenate([left, right]), return_inverse=True)
    lower, upper = ends[: len(left)], ends[len(left) :]
    label = np.arange(len(ids))
    while len(lower):
        a, b = label[lower], label[upper]
        differs = a != b
        if not differs.any():
            break
        lower, upper, a, b = lower[differs], upper[differs], a[differs], b[differs]
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while (label[label] != label).any():
            label = label[label]
    return ids, ids[label]
