"""Texts that must not be in the corpus: a document that shares a word 13-gram with one is dropped.

    excluded  "... I would not buy this lamp again, not even for half its price"
    document  "A review: I would not buy this lamp again, not even for half its price!"  ->  row 0

The words are those of `words.py`: neither capitals nor punctuation make a difference. A text with
fewer words than the n-gram has nothing to share.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.curation.words import hash_ngrams, hash_words

TABLE_BITS: Final = 24  #: of a hash; a table of them comes before the search in sorted n-grams
SHIFT: Final = np.uint64(64 - TABLE_BITS)


@dataclass(frozen=True)
class Excluded:
    """The excluded texts of a job, and their n-grams."""

    size: int  #: of the n-grams
    grams: UInt64Array  # [G] sorted
    rows: NDArray[np.int64]  # [G] the text that each is from, the first of several
    hashes: list[str]  #: of each text
    sources: list[int]  #: the number of its source

    @cached_property
    def _table(self) -> NDArray[np.bool_]:
        table = np.zeros(1 << TABLE_BITS, np.bool_)
        table[self.grams >> SHIFT] = True
        return table

    def find(self, texts: Sequence[str]) -> list[list[int]]:
        """The excluded texts that share an n-gram with each of the texts, sorted."""
        found = hash_ngrams(hash_words(texts), self.size, pad=False)
        maybe = np.flatnonzero(self._table[found.values >> SHIFT])
        at = np.minimum(np.searchsorted(self.grams, found.values[maybe]), len(self.grams) - 1)
        is_hit = self.grams[at] == found.values[maybe] if len(self.grams) else at > 0
        texts_hit = np.searchsorted(found.offsets, maybe[is_hit], side="right") - 1
        hits: list[set[int]] = [set() for _ in texts]
        for text, row in zip(texts_hit.tolist(), self.rows[at[is_hit]].tolist(), strict=True):
            hits[text].add(row)
        return [sorted(rows) for rows in hits]


def grams_of(texts: Sequence[str], size: int) -> tuple[UInt64Array, NDArray[np.int64]]:
    """The `grams` and `rows` of `Excluded`; a text with fewer than `size` words has none."""
    found = hash_ngrams(hash_words(texts), size, pad=False)
    grams, first = np.unique(found.values, return_index=True)
    return grams, np.searchsorted(found.offsets, first, side="right") - 1


def texts_digest(hashes: Sequence[str]) -> str:
    """A digest of a set of texts from their hashes, whatever their order."""
    return hashlib.blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()
