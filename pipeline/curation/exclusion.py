"""Texts that must not be in the corpus: a document that shares a word 13-gram with one is dropped.

    excluded  "... I would not buy this lamp again, not even for half its price"
    document  "A review: I would not buy this lamp again, not even for half its price!"  ->  dropped

The words are those of `words.py`: neither capitals nor punctuation make a difference. A text with
fewer words than the n-gram has nothing to share. Every worker reads the texts.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.curation.rules import Quality
from clozeline.pipeline.curation.words import hash_ngrams, hash_words
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import read_block

TABLE_BITS: Final = 24  #: of a hash; a table of them comes before the search in sorted n-grams
SHIFT: Final = np.uint64(64 - TABLE_BITS)
SHOWN_CHARACTERS: Final = 500


@dataclass(frozen=True)
class Excluded:
    """The n-grams of the excluded texts of a job."""

    size: int  #: of the n-grams
    grams: UInt64Array  # [G] sorted, each once

    @cached_property
    def _table(self) -> NDArray[np.bool_]:
        table = np.zeros(1 << TABLE_BITS, np.bool_)
        table[self.grams >> SHIFT] = True
        return table

    def count_shared(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """How many n-grams of each text are those of an excluded one, [D]."""
        ngrams = hash_ngrams(hash_words(texts), self.size, pad=False)
        maybe = np.flatnonzero(self._table[ngrams.values >> SHIFT])
        at = np.minimum(np.searchsorted(self.grams, ngrams.values[maybe]), len(self.grams) - 1)
        is_shared = np.zeros(len(ngrams.values), np.bool_)
        is_shared[maybe] = self.grams[at] == ngrams.values[maybe]
        return Ragged(is_shared, ngrams.offsets).sums


def grams_of(texts: Sequence[str], size: int) -> UInt64Array:
    """The `grams` of `Excluded`; a text with fewer than `size` words has none."""
    return _distinct(hash_ngrams(hash_words(texts), size, pad=False).values)


def _distinct(grams: UInt64Array) -> UInt64Array:
    """As `np.unique`, which takes forty times as long (numpy 2.4)."""
    grams = np.sort(grams)
    is_new = np.ones(len(grams), np.bool_)
    is_new[1:] = grams[1:] != grams[:-1]
    return grams[is_new]


def read_excluded(sources: Iterable[tuple[str, Sequence[Block]]], size: int) -> Excluded:
    """The n-grams of `size` words of some sources, by name. Raises InputError without any."""
    parts: list[UInt64Array] = []
    for source, blocks in sources:
        texts = 0
        for chunk in chain.from_iterable(map(read_block, blocks)):
            for bad in chunk.rejected:
                raise InputError(f"--exclude: {bad.where}: {bad.reason}; fix it first.")
            parts.append(grams_of(chunk.texts, size))
            texts += len(chunk.texts)
        if not texts:
            raise InputError(f"--exclude {source} has no text; check its columns (?text=..).")
    grams = _distinct(np.concatenate(parts))
    if not len(grams):
        raise InputError(
            f"--exclude: no text has {size} words, so nothing would be excluded; give a smaller "
            "--exclude-ngram."
        )
    return Excluded(size, grams)


def curate(
    texts: Sequence[str], quality: Quality, excluded: Excluded | None
) -> tuple[list[str], Counts]:
    """The texts that stay, and what was dropped and why.

    ["short", "A long text ..."]  ->  ["A long text ..."],  dropped {"quality_min_words": 1}
    """
    counts, kept = Counts(), []
    for text in texts:
        changed, rule, value = quality.check(text)
        if rule:
            _drop(text, counts, f"quality_{rule}", value)
        else:
            kept.append(changed)
    if excluded is None:
        return kept, counts
    allowed = []
    for text, shared in zip(kept, excluded.count_shared(kept).tolist(), strict=True):
        if shared:
            _drop(text, counts, "excluded", shared)
        else:
            allowed.append(text)
    return allowed, counts


def _drop(text: str, counts: Counts, reason: str, value: float) -> None:
    counts.dropped[reason] += 1
    counts.show(reason, document=text_hash(text), text=text[:SHOWN_CHARACTERS], value=value)


def text_hash(text: str) -> str:
    """BLAKE2b-128, as of documents."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
