"""What n-grams reach on the masks of a data set: a yardstick for the masked-LM loss.

    python tests/benchmarks/ngram_loss.py SHARDS [--limit N] [--tokens 100000000]

The masked token w is predicted from both sides, with l its left and r its right neighbours:

    p(w | l r)  is proportional to  p(w | l) p(w | r) / p(w)

which is exact if the two sides are independent given w. A neighbour that is masked itself is
unknown. The two models are Kneser-Ney trigrams, one of them over reversed text; their counts come
from the training shards.

A model also sees the token at a masked position: `mask_token_prob` of them are [MASK], some are
random and the rest are kept. `trigram_with_input_loss` uses that too, by Bayes' rule:

    p(w | l r, x)  is proportional to  p(w | l r) (keep [w = x] + random / number of random tokens)

The models have interpolated, modified Kneser-Ney smoothing (Chen & Goodman 1999, section 3):

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

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Offsets, offsets_of, slice_indices
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples
from clozeline.pipeline.examples.masks import MaskRules
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.data.shard_set import ShardSet

QUERIES = 64  # at once: [64, V] float32 stays near the processor
SLICE_TOKENS = 1 << 22
#: Discount where a corpus is too small to have n-grams that occur once, twice, 3 and 4 times.
SMALL_CORPUS_DISCOUNT = 0.5

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Tokens = NDArray[Any]  # integers of any width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--limit", type=int, help="validation examples; all by default")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="counted at most")
    given = parser.parse_args()
    for line in ngram_losses(given.shards, limit=given.limit, max_tokens=given.tokens).lines():
        print(line)


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


@dataclass(frozen=True, kw_only=True)
class NgramLosses:
    """Mean cross-entropies over the masked tokens, in nats; `ngram_tokens` were counted."""

    ngram_tokens: int
    bigram_loss: float
    trigram_loss: float
    trigram_with_input_loss: float

    def lines(self) -> list[str]:
        return [
            f"n-grams of {self.ngram_tokens:,} tokens, from the visible neighbours on both sides",
            f"  bigram            {self.bigram_loss:6.3f}",
            f"  trigram           {self.trigram_loss:6.3f}",
            f"  trigram and input {self.trigram_with_input_loss:6.3f}"
            "   also reads the token at the masked position, as the model does",
        ]


@dataclass(frozen=True)
class _Queries:
    """The masked positions of some examples, each field [P]; a neighbour is -1 if it is masked."""

    labels: Ints
    inputs: Ints  # what stands at the position
    left: tuple[Ints, Ints]  # the neighbour, and the one beyond it
    right: tuple[Ints, Ints]

    @classmethod
    def of(cls, examples: Examples) -> "_Queries":
        """Rows end in [SEP] and begin with [CLS], so neighbours can be taken across rows."""
        original, rows = examples.unmasked().input_ids, examples.masked_lm_positions
        starts = np.repeat(original.offsets[:-1], rows.lengths)
        at = starts + rows.values
        visible = original.values.astype(np.int64)
        visible[at] = -1
        left_far, left, right, right_far = (np.roll(visible, shift)[at] for shift in (2, 1, -1, -2))
        return cls(
            labels=examples.masked_lm_labels.values.astype(np.int64),
            inputs=examples.input_ids.values[at].astype(np.int64),
            left=(left, left_far),
            right=(right, right_far),
        )


def ngram_losses(folder: Path, *, limit: int | None, max_tokens: int) -> NgramLosses:
    """Count n-grams in the first `max_tokens` training tokens; predict masked validation tokens.

    `limit` takes the first validation examples only.
    Raises InputError as `ShardSet` does.
    """
    train, validation = ShardSet(folder, "train"), ShardSet(folder, "validation")
    tokenizer = load_tokenizer(validation.folder / TOKENIZER)
    rules = MaskRules.of(validation.manifest.config, tokenizer)
    queries = _Queries.of(_held_out(validation, limit))
    if not len(queries.labels):
        raise InputError(f"{folder}: the validation examples have no masked token.")
    tokens = _training_tokens(train, max_tokens)
    size = tokenizer.vocab_size
    before = TrigramModel(tokens, *queries.left, vocab_size=size)
    after = TrigramModel(tokens[::-1], *queries.right, vocab_size=size)
    sums = np.zeros(3)
    for start in range(0, len(queries.labels), QUERIES):
        part = slice(start, start + QUERIES)
        sums += _losses(queries, part, before, after, rules)
    bigram, trigram, with_input = (sums / len(queries.labels)).tolist()
    return NgramLosses(
        ngram_tokens=len(tokens),
        bigram_loss=bigram,
        trigram_loss=trigram,
        trigram_with_input_loss=with_input,
    )


def _losses(
    queries: _Queries, part: slice, before: TrigramModel, after: TrigramModel, rules: MaskRules
) -> NDArray[np.float64]:
    """Summed cross-entropy of the bigram, the trigram, and the trigram with the input, [3]."""
    labels, inputs = queries.labels[part], queries.inputs[part]
    left, right = ([side[part] for side in both] for both in (queries.left, queries.right))
    found = []
    for order in (2, 3):
        scores = before.probabilities(*left, order=order) / before.unigram
        scores *= after.probabilities(*right, order=order)
        scores[:, rules.is_special] = 0  # a special token is never masked
        found.append(_cross_entropy(scores, labels))
    seen = np.flatnonzero(inputs != rules.mask_id)
    likelihood = np.full_like(scores[seen], rules.random_token_prob / len(rules.replacement_ids))
    keep = 1 - rules.mask_token_prob - rules.random_token_prob
    likelihood[np.arange(len(seen)), inputs[seen]] += keep
    scores[seen] *= likelihood
    return np.array([*found, _cross_entropy(scores, labels)])


def _cross_entropy(scores: Floats, labels: Ints) -> float:
    """Sum of the negative log-probabilities of labels [B], from unnormalized scores [B, V]."""
    totals = scores.sum(1, dtype=np.float64)
    return float(-np.log(scores[np.arange(len(labels)), labels] / totals).sum())


def _read(shards: ShardSet) -> Iterator[Examples]:
    for shard in range(len(shards.entries)):
        yield shards.read(shard)


def _held_out(shards: ShardSet, limit: int | None) -> Examples:
    """The first `limit` examples, or all: those that `evaluation_batches` reads."""
    parts, rows = [], 0
    for examples in _read(shards):
        parts.append(examples)
        rows += len(examples)
        if limit is not None and rows >= limit:
            break
    return concatenate_examples(parts).slice(0, min(rows, limit or rows))


def _training_tokens(shards: ShardSet, max_tokens: int) -> Tokens:
    """The original tokens of the first examples, row after row, [CLS] and [SEP] included."""
    parts, count = [], 0
    for examples in _read(shards):
        parts.append(examples.unmasked().input_ids.values)
        count += len(parts[-1])
        if count >= max_tokens:
            break
    return np.concatenate(parts)[:max_tokens]


if __name__ == "__main__":
    main()
