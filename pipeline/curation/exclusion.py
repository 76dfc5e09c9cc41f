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
from clozeline.pipeline.common.ragged import slice_indices
from clozeline.pipeline.curation.words import hash_ngrams, hash_words

MOST_TEXTS: Final = 1000  #: with one n-gram that are kept; each is listed for each document
TABLE_BITS: Final = 24  #: of a hash; a table of them comes before the search in sorted n-grams
SHIFT: Final = np.uint64(64 - TABLE_BITS)


@dataclass(frozen=True)
class Excluded:
    """The excluded texts of a job, and their n-grams."""

    size: int  #: of the n-grams
    grams: UInt64Array  # [G] sorted; one that several texts have is there once for each of them
    rows: NDArray[np.int64]  # [G] the text that each is from
    hashes: list[str]  #: of each text
    sources: list[int]  #: the number of its source

    @cached_property
    def _table(self) -> NDArray[np.bool_]:
        table = np.zeros(1 << TABLE_BITS, np.bool_)
        table[self.grams >> SHIFT] = True
        return table

    def find(self, texts: Sequence[str]) -> list[list[int]]:
        """The excluded texts that share an n-gram with each of the texts, sorted.

        Rows are collected text by text, each n-gram once, so they are never more than `rows`.
        """
        found = hash_ngrams(hash_words(texts), self.size, pad=False)
        maybe = np.flatnonzero(self._table[found.values >> SHIFT])
        at = np.minimum(np.searchsorted(self.grams, found.values[maybe]), len(self.grams) - 1)
        is_hit = self.grams[at] == found.values[maybe] if len(self.grams) else at > 0
        texts_hit = np.searchsorted(found.offsets, maybe[is_hit], side="right") - 1
        first = at[is_hit]
        hits: list[list[int]] = [[] for _ in texts]
        for text in np.unique(texts_hit).tolist():
            begin = np.unique(first[slice(*np.searchsorted(texts_hit, [text, text + 1]))])
            end = np.searchsorted(self.grams, self.grams[begin], side="right")
            hits[text] = np.unique(self.rows[slice_indices(begin, end - begin)]).tolist()
        return hits


def grams_of(texts: Sequence[str], size: int) -> tuple[UInt64Array, NDArray[np.int64]]:
    """The `grams` and `rows` of `Excluded`; a text with fewer than `size` words has none.

    At most one for each word of the texts: 12 bytes of the file, 16 in each worker. An n-gram that
    very many texts have, as of a template, is there for the first ones only.
    """
    found = hash_ngrams(hash_words(texts), size, pad=False)
    order = np.argsort(found.values, kind="stable")  # so the rows of an n-gram are sorted
    grams, rows = found.values[order], np.repeat(np.arange(len(texts)), found.lengths)[order]
    is_new = np.ones(len(grams), np.bool_)
    is_new[1:] = (grams[1:] != grams[:-1]) | (rows[1:] != rows[:-1])
    grams, rows = grams[is_new], rows[is_new]
    is_kept = np.ones(len(grams), np.bool_)
    is_kept[MOST_TEXTS:] = grams[MOST_TEXTS:] != grams[:-MOST_TEXTS]
    return grams[is_kept], rows[is_kept]


def texts_digest(hashes: Sequence[str]) -> str:
    """A digest of a set of texts from their hashes, whatever their order."""
    return hashlib.blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()
