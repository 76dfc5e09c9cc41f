"""Kneser-Ney trigrams: worked out by hand, against a slow reference, and as distributions."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.train.evaluation.ngrams import SMALL_CORPUS_DISCOUNT, TrigramModel

THE, CAT, SAT, RAN = range(4)


def queries(*pairs):
    """(far, near) pairs as the two arrays that the model takes."""
    far, near = np.array(pairs, dtype=np.int64).T
    return near, far


def model_of(tokens, near, far, *, vocab_size=4, **options):
    return TrigramModel(
        np.array(tokens, dtype=np.uint16), near, far, vocab_size=vocab_size, **options
    )


def test_a_tiny_corpus_worked_out_by_hand():
    """the cat sat the cat ran: all discounts are a half, since nothing occurs four times."""
    near, far = queries((THE, CAT))
    model = model_of([THE, CAT, SAT, THE, CAT, RAN], near, far)
    (found,) = model.probabilities(near, far, order=3)
    # Distinct tokens before each token, except the first: the sat, cat the, sat cat, ran cat.
    # "the cat" counts once, because the trigram before it is not complete at the start.
    unigram = np.full(4, (1 - 0.5) / 4) + 4 * 0.5 / 4 / 4
    # "cat sat" and "cat ran" each have one distinct token before: the.
    bigram = np.array([0, 0, 0.5, 0.5]) / 2 + 2 * 0.5 / 2 * unigram
    trigram = np.array([0, 0, 0.5, 0.5]) / 2 + 2 * 0.5 / 2 * bigram
    np.testing.assert_allclose(found, trigram, rtol=1e-6)


def test_an_unknown_neighbour_leaves_the_shorter_context():
    near, far = queries((THE, CAT), (-1, CAT), (-1, -1))
    model = model_of([THE, CAT, SAT, THE, CAT, RAN, CAT, RAN], near, far)
    full, pair, none = model.probabilities(near, far, order=3)
    np.testing.assert_array_equal(pair, model.probabilities(near, far, order=2)[0])
    np.testing.assert_allclose(none, np.array([3, 4, 2, 3]) / 12, rtol=1e-6)  # counts plus one
    assert full[SAT] != pair[SAT]
    # "cat sat" occurs once and "cat ran" twice; the bigram counts occurrences.
    assert pair[RAN] > pair[SAT] > pair[THE]


def test_a_context_that_never_occurred_backs_off():
    near, far = queries((RAN, CAT), (THE, CAT))
    model = model_of([THE, CAT, SAT, THE, CAT, RAN], near, far)
    unseen, _ = model.probabilities(near, far, order=3)
    assert unseen[SAT] == unseen[RAN] > unseen[THE] == unseen[CAT] > 0


TOKENS = st.lists(st.integers(0, 4), min_size=4, max_size=80)


@settings(max_examples=50)
@given(tokens=TOKENS, slice_tokens=st.integers(3, 100))
def test_probabilities_sum_to_one_and_none_is_zero(tokens, slice_tokens):
    near, far = queries(*[(a, b) for b in range(-1, 5) for a in range(-1, 5)])
    model = model_of(tokens, near, far, vocab_size=5, slice_tokens=slice_tokens)
    for order in (2, 3):
        found = model.probabilities(near, far, order=order)
        assert found.min() > 0
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)


def reference(tokens, vocab_size):
    """p(w | a b) and p(w | b) of interpolated modified Kneser-Ney, one n-gram at a time."""
    trigrams = Counter(zip(tokens, tokens[1:], tokens[2:], strict=False))
    bigrams, continuations, predecessors = Counter(), Counter(), Counter()
    for (_, b, w), count in trigrams.items():
        bigrams[b, w] += count
        continuations[b, w] += 1
    for _, w in bigrams:
        predecessors[w] += 1

    def smoothed(counts, lower):
        n = Counter(counts.values())
        if all(n[k] for k in (1, 2, 3, 4)):
            y = n[1] / (n[1] + 2 * n[2])
            by_count = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
            by_count = [min(max(d, y), k) for k, d in enumerate(by_count, start=1)]
        else:
            by_count = [SMALL_CORPUS_DISCOUNT] * 3
        followers = defaultdict(dict)
        for (*context, w), count in counts.items():
            followers[tuple(context)][w] = count

        def probability(*query):
            *context, w = query
            after = followers[tuple(context)]
            if not after:
                return lower(*context[1:], w)
            cut = {w: by_count[min(count, 3) - 1] for w, count in after.items()}
            left_over = sum(cut.values()) * lower(*context[1:], w)
            return (after.get(w, 0) - cut.get(w, 0) + left_over) / sum(after.values())

        return probability

    lowest = smoothed({(w,): c for w, c in predecessors.items()}, lambda _: 1 / vocab_size)
    pair = smoothed(bigrams, lowest)
    triple = smoothed(trigrams, smoothed(continuations, lowest))
    return triple, pair


@pytest.mark.parametrize("slice_tokens", [1000, 7000])
def test_it_equals_a_slow_reference(slice_tokens):
    """5,000 tokens of a skewed distribution: discounts are estimated, contexts are shared."""
    random = np.random.default_rng(3)
    tokens = np.minimum(random.geometric(0.3, 5000) - 1, 11)
    near, far = queries((0, 0), (3, 1), (1, 7), (9, 9), (2, 11))
    model = model_of(tokens, near, far, vocab_size=12, slice_tokens=slice_tokens)
    triple, pair = reference(tokens.tolist(), 12)
    for order in (2, 3):
        found = model.probabilities(near, far, order=order)
        expected = [
            [triple(a, b, w) if order == 3 else pair(b, w) for w in range(12)]
            for a, b in zip(far.tolist(), near.tolist(), strict=True)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
