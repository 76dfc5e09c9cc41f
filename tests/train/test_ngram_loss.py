"""The n-gram yardstick of the manual: against slow references, and as distributions."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.examples.masks import MaskRules
from tests.benchmarks.ngram_loss import SMALL_CORPUS_DISCOUNT, TrigramModel, ngram_losses
from tests.support.small import small_tokenizer
from tests.support.small_data import random_examples, write_data_set

TOKENIZER = small_tokenizer()
CONFIG = DataConfig(max_seq_length=16, num_shards=1, max_predictions_per_seq=3)
CHAIN = TOKENIZER.replacement_ids[:6].astype(np.int64)


def chain_examples(rows, *, split, **options):
    """Random rows whose tokens run through a cycle of six, now and then skipping one."""
    examples = random_examples(rows, split=split, **options)
    rng = np.random.default_rng(len(split))
    ids = examples.input_ids.values.astype(np.int64)
    steps = np.cumsum(1 + (rng.random(len(ids)) < 0.1))
    ids = np.where(TOKENIZER.is_special[ids], ids, CHAIN[steps % 6])
    return replace(examples, input_ids=Ragged(ids.astype(np.uint16), examples.input_ids.offsets))


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    return write_data_set(
        folder, train=(400,), validation=(60, 40), config=CONFIG, make=chain_examples
    )


def test_each_loss_equals_one_position_after_the_other(chain):
    """The formula of the module's docstring, a masked token at a time."""
    tokens = read_shard(next(chain.glob("train-*"))).unmasked().input_ids.values
    examples = read_shard(min(chain.glob("validation-*")))
    rules = MaskRules.of(CONFIG, TOKENIZER)
    size = TOKENIZER.vocab_size
    losses = []
    for row in range(20):
        shown = slice(*examples.input_ids.offsets[row : row + 2])
        masked = slice(*examples.masked_lm_positions.offsets[row : row + 2])
        original = examples.unmasked().input_ids.values[shown].astype(np.int64)
        visible = original.copy()
        visible[examples.masked_lm_positions.values[masked]] = -1
        # A row follows on the [SEP] of another, and [CLS] of a third comes after it.
        visible = np.array([TOKENIZER.sep_id, *visible, TOKENIZER.cls_id])
        for at in examples.masked_lm_positions.values[masked].astype(np.int64) + 1:
            before, after = (
                TrigramModel(text, near, far, vocab_size=size).probabilities(near, far, order=3)[0]
                for text, near, far in (
                    (tokens, visible[at - 1 : at], visible[at - 2 : at - 1]),
                    (tokens[::-1], visible[at + 1 : at + 2], visible[at + 2 : at + 3]),
                )
            )
            counts = np.bincount(tokens, minlength=size) + 1
            scores = before.astype(float) * after * counts.sum() / counts
            scores[TOKENIZER.is_special] = 0
            label, read = original[at - 1], examples.input_ids.values[shown][at - 1]
            plain = -np.log(scores[label] / scores.sum())
            if read != TOKENIZER.mask_id:
                scores *= 0.1 / len(rules.replacement_ids) + 0.1 * (np.arange(size) == read)
            losses.append((plain, -np.log(scores[label] / scores.sum())))
    found = ngram_losses(chain, limit=20, max_tokens=10**6)
    expected = np.mean(losses, axis=0)
    assert [found.trigram_loss, found.trigram_with_input_loss] == pytest.approx(expected, rel=1e-4)


def probabilities(tokens, pairs, **options):
    """p(w | b) and p(w | a b) of pairs (a, b), by order."""
    far, near = np.array(pairs, dtype=np.int64).T
    model = TrigramModel(np.array(tokens, dtype=np.uint16), near, far, **options)
    return {order: model.probabilities(near, far, order=order) for order in (2, 3)}


TOKENS = st.lists(st.integers(0, 4), min_size=4, max_size=80)


@settings(max_examples=50)
@given(tokens=TOKENS, slice_tokens=st.integers(3, 100))
def test_probabilities_sum_to_one_and_none_is_zero(tokens, slice_tokens):
    pairs = [(a, b) for b in range(-1, 5) for a in range(-1, 5)]
    for found in probabilities(tokens, pairs, vocab_size=5, slice_tokens=slice_tokens).values():
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
    pairs = [(0, 0), (3, 1), (1, 7), (9, 9), (2, 11)]
    found = probabilities(tokens, pairs, vocab_size=12, slice_tokens=slice_tokens)
    triple, pair = reference(tokens.tolist(), 12)
    expected = {
        2: [[pair(b, w) for w in range(12)] for _, b in pairs],
        3: [[triple(a, b, w) for w in range(12)] for a, b in pairs],
    }
    for order in (2, 3):
        np.testing.assert_allclose(found[order], expected[order], rtol=1e-4)
