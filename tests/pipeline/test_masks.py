"""Masks: which tokens, how many, what replaces them, and that the original can be restored."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.examples.masks import (
    SCHEMES,
    MaskRules,
    count_in_long_words,
    count_predictions,
    mask_examples,
    mask_keys,
)
from tests.support.small import lists, make_examples, small_tokenizer

TOKENIZER = small_tokenizer()
CLS, SEP, MASK = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.mask_id
FIRST_WORD = 6  # after the specials and [unused0]
CONTINUES = int(np.argmax(TOKENIZER.is_continuation))
RULES = MaskRules.of(DataConfig(max_seq_length=32), TOKENIZER)
WHOLE = replace(RULES, masking="whole-words")

TOKEN = st.one_of(st.integers(FIRST_WORD, TOKENIZER.vocab_size - 1), st.just(TOKENIZER.unk_id))
ROWS = st.lists(st.lists(TOKEN, min_size=1, max_size=29), min_size=1, max_size=6)


def with_specials(rows):
    return make_examples([[CLS, *row, SEP] for row in rows])


def mask(examples, rules=RULES, *, seed=0, shard=0, epoch=0, first_row=0):
    keys = np.broadcast_to(mask_keys(seed, split="train", shard=shard, epoch=epoch), len(examples))
    rows = first_row + np.arange(len(examples))
    return mask_examples(examples, keys=keys, rows=rows, rules=rules)


@given(ROWS, st.integers(0, 1000), st.sampled_from([RULES, WHOLE]))
def test_labels_restore_the_input_and_special_tokens_are_neither_masked_nor_used(rows, seed, rules):
    examples = with_specials(rows)
    masked = mask(examples, rules, seed=seed)
    original = masked.unmasked()
    assert (original.input_ids.values == examples.input_ids.values).all()
    assert not len(original.masked_lm_labels.values)
    labels = masked.masked_lm_labels.values
    assert (labels == examples.input_ids.values[masked.flat_positions()]).all()
    assert not TOKENIZER.is_special[labels].any()
    replaced = masked.input_ids.values[masked.flat_positions()]
    assert np.isin(replaced, [MASK, *TOKENIZER.replacement_ids]).all()
    for positions in lists(masked.masked_lm_positions):
        assert positions == sorted(set(positions))


@given(ROWS, st.integers(0, 1000))
def test_exactly_k_tokens_are_masked_if_there_are_enough(rows, seed):
    examples = with_specials(rows)
    words = [sum(token != TOKENIZER.unk_id for token in row) for row in rows]
    k = count_predictions(examples.input_ids.lengths, RULES)
    counts = mask(examples, seed=seed).masked_lm_positions.lengths
    assert counts.tolist() == np.minimum(words, k).tolist()


@pytest.mark.parametrize(
    ("length", "prob", "most", "k"),
    [
        (3, 0.15, 20, 1),  # never none
        (9, 0.15, 20, 1),  # 1.35
        (10, 0.15, 20, 2),  # 1.5 rounds up, where Python's round() would too
        (30, 0.15, 20, 5),  # 4.5 rounds up, where Python's round() gives 4
        (128, 0.15, 20, 19),  # 19.2
        (512, 0.15, 77, 77),
        (512, 0.15, 20, 20),
    ],
)
def test_the_number_of_predictions_is_googles_with_halves_rounded_up(length, prob, most, k):
    rules = replace(RULES, masked_lm_prob=prob, max_predictions_per_seq=most)
    assert count_predictions(np.array([length]), rules).tolist() == [k]


def test_the_masks_of_a_row_depend_only_on_its_shard_row_and_epoch():
    rows = [[FIRST_WORD + (i * j) % 30 for j in range(1, 25)] for i in range(1, 41)]
    together = mask(with_specials(rows))
    alone = mask(with_specials(rows[17:18]), first_row=17)
    assert lists(together.input_ids)[17] == lists(alone.input_ids)[0]
    for other in (mask(with_specials(rows), epoch=1), mask(with_specials(rows), shard=1)):
        assert lists(other.input_ids) != lists(together.input_ids)


def test_eighty_ten_ten():
    rows = [[FIRST_WORD + (i + j) % 30 for j in range(30)] for i in range(4000)]
    masked = mask(with_specials(rows))
    labels = masked.masked_lm_labels.values
    replaced = masked.input_ids.values[masked.flat_positions()]
    n = len(labels)
    kept = (replaced == labels).mean()
    # One random token in 47 equals the label and counts as kept.
    again = 0.1 / len(TOKENIZER.replacement_ids)
    for fraction, expected in (((replaced == MASK).mean(), 0.8), (kept, 0.1 + again)):
        assert abs(fraction - expected) < 5 * np.sqrt(expected * (1 - expected) / n)


def test_every_token_is_masked_equally_often():
    masked = mask(with_specials([[FIRST_WORD] * 20] * 9000))
    k = count_predictions(np.array([22]), RULES)[0]
    counts = np.bincount(masked.masked_lm_positions.values, minlength=22)[1:21]
    expected = 9000 * k / 20
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


@given(ROWS, st.integers(0, 1000))
def test_whole_words_are_masked_whole_and_fit(rows, seed):
    examples = with_specials(rows)
    masked = mask(examples, WHOLE, seed=seed)
    k = count_predictions(examples.input_ids.lengths, WHOLE)
    assert (masked.masked_lm_positions.lengths <= k).all()
    for number, (row, positions) in enumerate(
        zip(rows, lists(masked.masked_lm_positions), strict=True)
    ):
        words = []  # [first position, after the last] of each word that may be masked
        for position, token in enumerate(row, start=1):
            if token == TOKENIZER.unk_id:
                continue
            continues = TOKENIZER.is_continuation[token] and words and words[-1][1] == position
            if continues:
                words[-1][1] = position + 1
            else:
                words.append([position, position + 1])
        most = min(k[number], sum(stop - start for start, stop in words))
        for start, stop in words:
            if stop - start <= most:  # others are masked token by token
                assert len({position in positions for position in range(start, stop)}) == 1


def test_whole_words_fill_the_budget_when_all_words_are_short():
    masked = mask(with_specials([[FIRST_WORD] * 20] * 50), WHOLE)
    assert set(masked.masked_lm_positions.lengths) == {count_predictions(np.array([22]), WHOLE)[0]}


#: Tokens in a word, as scripts and kinds of text have them; and the most that a row has.
WORDS = {
    "English": (lambda rng: rng.geometric(0.75), 126),
    "Thai, spaces between clauses": (lambda rng: 1 + rng.geometric(1 / 25), 126),
    "Japanese, a sentence and its mark": (lambda rng: rng.choice([1, rng.integers(8, 60)]), 126),
    "long URLs": (lambda rng: rng.choice([1, 2, 45], p=[0.7, 0.25, 0.05]), 126),
    "German compounds in short rows": (lambda rng: rng.integers(1, 9), 14),
    "Tibetan, a row is a word": (lambda rng: 500, 126),
    "Khmer, in rows of 512": (lambda rng: rng.integers(20, 200), 510),
    "Turkish endings in short rows": (lambda rng: 2 + rng.poisson(2), 20),
    "a word list of three tokens a word": (lambda rng: 3, 10),
    "base64 between words": (lambda rng: rng.choice([1, 300], p=[0.9, 0.1]), 126),
    "Lao in rows of 64": (lambda rng: 3 + rng.geometric(1 / 8), 62),
    "Chinese, a character a word": (lambda rng: 1, 126),
}


@pytest.mark.parametrize("text", WORDS)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=5, deadline=None)
def test_whole_words_of_all_scripts_mask_as_much_as_tokens(text, seed):
    """No row is without masks, and nine tenths of the tokens that single tokens would mask are."""
    length_of_word, most = WORDS[text]
    rng, rows = np.random.default_rng(seed), []
    rules = replace(WHOLE, max_predictions_per_seq=most)
    for _ in range(300):
        row = []
        while len(row) < most:
            row += [FIRST_WORD] + [CONTINUES] * (int(length_of_word(rng)) - 1)
        rows.append(row[:most])
    examples = with_specials(rows)
    counts = mask(examples, rules, seed=seed).masked_lm_positions.lengths
    assert counts.min() >= 1
    assert 0.9 <= counts.sum() / count_predictions(examples.input_ids.lengths, rules).sum() <= 1


def test_only_rows_with_a_word_beyond_the_budget_have_other_masks():
    """Frozen: what these rows had before such words were masked token by token."""
    row = [FIRST_WORD, CONTINUES, FIRST_WORD, CONTINUES, CONTINUES, *[FIRST_WORD] * 13]
    short, long = with_specials([row]), with_specials([[FIRST_WORD] + [CONTINUES] * 17])
    assert lists(mask(short, WHOLE, seed=2).masked_lm_positions) == [[3, 4, 5]]
    assert count_in_long_words(short, WHOLE) == 0
    assert count_in_long_words(long, WHOLE) == 18
    assert mask(long, WHOLE, seed=1).masked_lm_positions.lengths.tolist() == [3]


def test_golden_masks():
    row = [CLS, *range(FIRST_WORD, FIRST_WORD + 18), SEP]
    masked = mask(make_examples([row, row]), seed=1)
    assert lists(masked.masked_lm_positions) == [[8, 14, 18], [4, 6, 12]]
    assert mask(make_examples([]), seed=1).input_ids.values.size == 0


@pytest.mark.parametrize("masking", list(SCHEMES))
@pytest.mark.parametrize("probs", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_replacement_probabilities_of_one_and_zero_are_literal(masking, probs):
    rates = dict(zip(("mask_token_prob", "random_token_prob"), probs, strict=True))
    config = DataConfig(max_seq_length=32, masked_lm_prob=1.0, masking=masking, **rates)
    masked = mask(with_specials([[FIRST_WORD] * 29] * 20), MaskRules.of(config, TOKENIZER))
    replaced = masked.input_ids.values[masked.flat_positions()]
    assert len(replaced) == 20 * 29
    if rates["mask_token_prob"]:
        assert (replaced == MASK).all()
    elif rates["random_token_prob"]:
        assert set(replaced.tolist()) == set(TOKENIZER.replacement_ids.tolist())
    else:
        assert (replaced == FIRST_WORD).all()
