"""Trigram models with interpolated, modified Kneser-Ney smoothing (Chen & Goodman 1999, section 3).

    p(w | a b) = (c(a b w) - D) / c(a b)  +  backoff(a b) p(w | b)
    p(w | b)   = (n(. b w) - D) / n(. b)  +  backoff(b) p(w)      n: distinct tokens before "b w"
    p(w)       = (n(. w) - D) / n(.)      +  backoff / V

The discount D depends on the count (1, 2, 3 or more) and on the order; backoff is what discounts
leave over. Where `a` is unknown, p(w | b) uses the counts c(b w); where `b` is unknown as well,
p(w) is the unigram, add-one smoothed.

Only the contexts that will be queried are kept. Trigrams are counted in slices of the corpus by
their middle token, so memory depends on the size of a slice and not on the number of trigrams.
V vocabulary, N tokens, B queries, E entries of a table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Offsets, offsets_of, slice_indices

SLICE_TOKENS = 1 << 22
#: Discount where a corpus is too small to have n-grams that occur once, twice, 3 and 4 times.
SMALL_CORPUS_DISCOUNT = 0.5

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Tokens = NDArray[Any]  # integers of any width


@dataclass(frozen=True)
class _Table:
    """The counts of the tokens after each of some contexts."""

    contexts: Ints  # sorted
    offsets: Offsets  # context i has the entries offsets[i] : offsets[i + 1]
    tokens: Ints  # [E]
    counts: Ints  # [E]
    discounts: Floats  # of a count of 0, 1, 2, 3 or more

    def interpolate(self, contexts: Ints, lower: Floats) -> Floats:
        """Discounted probabilities plus backoff times `lower`, both [B, V], for contexts [B].

        A context that never occurred gets `lower` itself.
        """
        found = np.searchsorted(self.contexts, contexts)
        lengths = np.diff(self.offsets)[found]
        rows = np.repeat(np.arange(len(found)), lengths)
        entries = slice_indices(self.offsets[found], lengths)
        counts = self.counts[entries]
        discounts = self.discounts[np.minimum(counts, 3)]
        totals = np.bincount(rows, counts, len(found))
        backoff = np.bincount(rows, discounts, len(found)) / np.maximum(totals, 1)
        probabilities = lower * np.where(totals > 0, backoff, 1)[:, None].astype(np.float32)
        probabilities[rows, self.tokens[entries]] += (counts - discounts) / totals[rows]
        return probabilities


class _TableBuilder:
    """Collects entries (context, token, count) slice by slice; keeps those of queried contexts."""

    def __init__(self, contexts: Ints) -> None:
        self._contexts = np.unique(contexts)
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._with_count = np.zeros(5, dtype=np.int64)  # entries by count, 1 to 4; 0 unused

    def add(self, contexts: Ints, tokens: Ints, counts: Ints) -> None:
        """Distinct entries, [E] each."""
        self._with_count += np.bincount(counts[counts < 5], minlength=5)
        if not len(self._contexts):
            return
        found = np.minimum(np.searchsorted(self._contexts, contexts), len(self._contexts) - 1)
        kept = self._contexts[found] == contexts
        self._parts.append((found[kept], tokens[kept], counts[kept]))

    def table(self) -> _Table:
        """All entries, by context."""
        parts = self._parts or [(np.zeros(0, np.int64),) * 3]
        contexts, tokens, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(contexts, kind="stable")
        lengths = np.bincount(contexts, minlength=len(self._contexts))
        discounts = _discounts(self._with_count)
        return _Table(self._contexts, offsets_of(lengths), tokens[order], counts[order], discounts)


def _discounts(with_count: Ints) -> Floats:
    """The discounts of Chen & Goodman (1999), equation 26, from the counts of counts 1 to 4."""
    if not with_count[1:].all():
        return np.array([0, *[SMALL_CORPUS_DISCOUNT] * 3], dtype=np.float32)
    k = np.arange(1, 4)
    y = with_count[1] / (with_count[1] + 2 * with_count[2])
    estimates = k - (k + 1) * y * with_count[2:] / with_count[1:-1]
    # In small samples estimates can fall below 0, and then nothing would be left for backoff.
    return np.array([0, *np.clip(estimates, y, k)], dtype=np.float32)


class TrigramModel:
    """What follows two tokens, counted in a corpus; all queries are given up front.

    `tokens` [N] is the corpus. A query is the token before the one to predict, `near` [B], and the
    token before that, `far` [B]; -1 where it is unknown. Reversed tokens give a model of what comes
    before two tokens.
    """

    def __init__(
        self,
        tokens: Tokens,
        near: Ints,
        far: Ints,
        *,
        vocab_size: int,
        slice_tokens: int = SLICE_TOKENS,
    ) -> None:
        self._vocab_size = vocab_size
        counts = np.bincount(tokens, minlength=vocab_size)
        self.unigram: Floats = ((counts + 1) / (counts + 1).sum()).astype(np.float32)  # [V]
        known = near >= 0
        continuations, bigrams = (_TableBuilder(near[known]) for _ in range(2))
        trigrams = _TableBuilder(self._context(near, far)[known & (far >= 0)])
        predecessors = np.zeros(vocab_size, dtype=np.int64)
        slices = -(-len(tokens) // slice_tokens)
        for index in range(slices):
            far_ids, near_ids, ids, occurrences = self._distinct(tokens, index, slices)
            trigrams.add(self._context(near_ids, far_ids), ids, occurrences)
            is_first = np.ones(len(ids), dtype=bool)
            is_first[1:] = (near_ids[1:] != near_ids[:-1]) | (ids[1:] != ids[:-1])
            firsts = np.flatnonzero(is_first)
            pair = near_ids[firsts], ids[firsts]
            bigrams.add(*pair, np.add.reduceat(occurrences, firsts))
            continuations.add(*pair, np.diff(firsts, append=len(ids)))
            predecessors += np.bincount(pair[1], minlength=vocab_size)
        self._bigrams, self._trigrams = bigrams.table(), trigrams.table()
        self._continuations = continuations.table()
        self._continuation_unigram = self._smoothed(predecessors)  # [V]

    def probabilities(self, near: Ints, far: Ints, *, order: int) -> Floats:
        """p(w | far near) [B, V]; with order 2, p(w | near)."""
        far = far if order == 3 else np.full_like(far, -1)
        found = np.tile(self.unigram, (len(near), 1))
        pairs = np.flatnonzero((near >= 0) & (far < 0))
        triples = np.flatnonzero((near >= 0) & (far >= 0))
        lowest = self._continuation_unigram[None]
        found[pairs] = self._bigrams.interpolate(near[pairs], lowest)
        lower = self._continuations.interpolate(near[triples], lowest)
        contexts = self._context(near[triples], far[triples])
        found[triples] = self._trigrams.interpolate(contexts, lower)
        return found

    def _context(self, near: Ints, far: Ints) -> Ints:
        return near * self._vocab_size + far

    def _distinct(self, tokens: Tokens, index: int, slices: int) -> tuple[Ints, Ints, Ints, Ints]:
        """The distinct trigrams whose middle token falls into a slice: far, near, id, count.

        They are sorted by near, then id, then far.
        """
        at = 1 + np.flatnonzero(tokens[1:-1] % slices == index)
        size = self._vocab_size
        keys = (tokens[at].astype(np.int64) * size + tokens[at + 1]) * size + tokens[at - 1]
        keys.sort()
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        pairs, far = np.divmod(keys[firsts], size)
        near, ids = np.divmod(pairs, size)
        return far, near, ids, np.diff(firsts, append=len(keys))

    def _smoothed(self, counts: Ints) -> Floats:
        """Discounted probabilities plus backoff times the uniform distribution, [V]."""
        builder = _TableBuilder(np.zeros(1, np.int64))
        ids = np.flatnonzero(counts)
        builder.add(np.zeros_like(ids), ids, counts[ids])
        uniform = np.full((1, self._vocab_size), 1 / self._vocab_size, dtype=np.float32)
        found: Floats = builder.table().interpolate(np.zeros(1, np.int64), uniform)[0]
        return found
