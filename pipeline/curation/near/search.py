"""Which documents are near-duplicates: signatures, bands, pairs, components.

Broder 1997; Leskovec, Rajaraman, Ullman 2020, chapter 3.

    shingles of a text  ->  signature of 126 minima  ->  18 keys, one for each band of 7 minima

Two texts share a minimum with the probability of their Jaccard similarity s, a band with s**7, and
at least one of 18 bands with 1 - (1 - s**7)**18. The rest is left to the exact comparison.

    similarity   0.5   0.6   0.7   0.75   0.8   0.85   0.9
    found        13 %  40 %  79 %  92 %   99 %  99.9 % 100 %

    key 7: a, b, c      ->  pairs  a b, a c, b c
    a b 0.93, a c 0.41  ->  edge   a b               (similarity 0.8)
    a b, b d            ->  b and d are dropped; the kept copy of both is a

A document is its id: a 64-bit mix of its text hash under a key of its own. The document with the
lowest id of a component is kept. Under the text hash itself, which decides the split, the lowest of
several would rarely be held out.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, mix64, random_bits, stream_key
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.cache_file import digest_of

# Increase it when the same documents would give other near files: words, signatures, layout.
NEAR_VERSION = 7
SHINGLE_WORDS: Final = 5
MINIMA: Final = 128  #: at most, of a signature
RECALL: Final = 0.98  #: of pairs at the chosen similarity, at least
SLAB: Final = 1 << 16  #: shingles at once: they stay in the processor's cache


@dataclass(frozen=True)
class Bands:
    """How many bands of how many minima each."""

    bands: int
    rows: int

    @classmethod
    def for_similarity(cls, similarity: float) -> Self:
        """The longest bands, and so the fewest wrong candidates, that find RECALL of such pairs.

        0.7 -> 25 bands of 5,  0.8 -> 18 of 7,  0.9 -> 11 of 11
        """
        choices = [cls(MINIMA // rows, rows) for rows in range(MINIMA, 0, -1)]
        return next(c for c in choices if c.recall(similarity) >= RECALL or c.rows == 1)

    def recall(self, similarity: ArrayLike) -> NDArray[np.float64]:
        """The probability that two texts of this similarity share a band."""
        return 1 - (1 - np.asarray(similarity, np.float64) ** self.rows) ** self.bands


@np.errstate(over="ignore")  # arithmetic modulo 2**32 is the point
def signatures(shingles: Ragged, size: int) -> NDArray[np.uint32]:
    """The minima of each row of 64-bit hashes, uint32 [D, size]; every row has at least one."""
    minima = np.empty((size, len(shingles)), np.uint32)
    multipliers, addends = _permutations(size)
    cuts = np.searchsorted(shingles.offsets, np.arange(0, len(shingles.values), SLAB))
    bounds = np.unique([*cuts, len(shingles)]).tolist()
    for start, stop in pairwise(bounds):
        part = shingles.slice(start, stop)
        hashes = (part.values >> np.uint64(32)).astype(np.uint32)
        permuted = np.empty_like(hashes)
        for row in range(size):
            np.multiply(hashes, multipliers[row], out=permuted)
            permuted += addends[row]
            np.minimum.reduceat(permuted, part.offsets[:-1], out=minima[row, start:stop])
    return minima.T


@np.errstate(over="ignore")
def band_keys(minima: NDArray[np.uint32], bands: Bands) -> UInt64Array:
    """A 64-bit key of each band, uint64 [D, bands]; keys of different bands differ."""
    keys = np.broadcast_to(
        stream_key(0, "near/bands", np.arange(bands.bands)), (len(minima), bands.bands)
    )
    for row in range(bands.rows):
        keys = mix64(keys ^ minima[:, row :: bands.rows][:, : bands.bands])
    return keys


def _permutations(size: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Factors and addends of permutations of 32-bit numbers: h -> h * odd + any, uint32 [size]."""
    bits = random_bits(stream_key(0, "near/minima"), np.arange(size), np.arange(2)[:, None])
    numbers = (bits >> np.uint64(32)).astype(np.uint32)
    return numbers[0] | np.uint32(1), numbers[1]


@dataclass(frozen=True, kw_only=True)
class NearSearch:
    """The search over the token cache files of a job, in whose folder its own files are."""

    folder: AnyPath
    tokenized: tuple[str, ...]  #: the names of the token cache files, one for each block
    similarity: float  #: minimum Jaccard similarity to count as near-duplicates
    partitions: int  #: of the band keys, and of the ids
    buckets: Buckets

    @cached_property
    def bands(self) -> Bands:
        return Bands.for_similarity(self.similarity)

    def paths(self, tokenized: str) -> tuple[AnyPath, AnyPath]:
        """What is kept of a block, once it is tokenized: band keys and words."""
        name = digest_of([NEAR_VERSION, tokenized, self.bands, self.partitions])
        return self.folder / f"{name}.near", self.folder / f"{name}.words"

    @cached_property
    def keys_paths(self) -> list[AnyPath]:
        """The band keys of all blocks."""
        return [self.paths(name)[0] for name in self.tokenized]

    @cached_property
    def words_paths(self) -> list[AnyPath]:
        return [self.paths(name)[1] for name in self.tokenized]

    @cached_property
    def _digest(self) -> str:
        """A digest of what is kept of all blocks."""
        return digest_of([path.name for path in self.keys_paths])

    def _step_path(self, kind: str, *parts: object) -> AnyPath:
        return self.folder / f"{digest_of([self._digest, *parts])}.{kind}"

    def pairs_path(self, partition: int) -> AnyPath:
        return self._step_path("pairs", partition)

    def edges_path(self, partition: int) -> AnyPath:
        return self._step_path("edges", partition, self.similarity)

    @property
    def drops_path(self) -> AnyPath:
        """The near-duplicates of all buckets, once they are found."""
        return self._step_path("drops", self.similarity, self.buckets)


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
