"""The checks of masks: bounds that chance does not exceed, and each problem by its own line."""

import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.verify import mask_checks
from clozeline.pipeline.verify.mask_checks import check_masks, within_chance
from tests.pipeline.test_examples import documents_of, examples_of
from tests.pipeline.test_row_checks import remasked, shard_of
from tests.support.small import small_tokenizer

TOKENIZER = small_tokenizer()
CONFIG = DataConfig(max_seq_length=24, num_shards=1)
WHOLE = replace(CONFIG, masking="whole-words", masked_lm_prob=0.3)
SEED = "rows with masks other than those of the config and the seed"
NUMBER = "rows with more or fewer masks than the rules give"


@cache
def many_rows(config=CONFIG):
    """3,000 rows and more, one of the small vocabulary's "##" pieces every third token."""
    documents = documents_of([[[6] * 12]] * 1200)
    ids = documents.ids.copy()
    pieces = np.flatnonzero(TOKENIZER.is_continuation)
    ids[1::3] = pieces[np.arange(len(ids[1::3])) % len(pieces)]
    examples, _ = examples_of(replace(documents, ids=ids), config)
    assert len(examples) > 3000
    return examples


def findings_of(examples, config=CONFIG):
    shard = shard_of(examples, config)
    check_masks(shard)
    return shard.findings.lines()


@pytest.mark.parametrize("config", [CONFIG, WHOLE])
def test_sound_masks_have_no_findings(config):
    assert findings_of(many_rows(config), config) == []


def test_chance_exceeds_the_bounds_less_than_once_in_25_million():
    """Against the exact tails of the binomial law."""
    for size, chance in product([1, 10, 100, 1000], [0.01, 0.1, 0.5, 0.8]):
        outside = sum(
            math.comb(size, count) * chance**count * (1 - chance) ** (size - count)
            for count in range(size + 1)
            if not within_chance(count, size * chance, size * chance * (1 - chance))
        )
        assert outside < 4e-8, (size, chance)


def test_the_bounds_are_narrow_where_there_is_much_to_count():
    variance = 1_000_000 * 0.8 * 0.2
    assert within_chance(802_000, 800_000, variance)
    assert not within_chance(803_000, 800_000, variance)
    assert not within_chance(797_000, 800_000, variance)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"mask_token_prob": 0.85, "random_token_prob": 0.05}, "are [MASK], not 80.00%"),
        ({"mask_token_prob": 0.8, "random_token_prob": 0.05}, "are kept, not 10.2"),
        ({"mask_token_prob": 0.8, "random_token_prob": 0.15}, "are a random token, not 9.7"),
    ],
)
def test_fractions_other_than_80_10_10(rates, expected):
    lines = findings_of(remasked(many_rows(), **rates))
    assert any(f"% of the masked tokens {expected}" in line for line in lines), lines


def test_masks_at_the_front_of_the_rows_only():
    examples = many_rows().unmasked()
    positions = np.tile(np.arange(1, 5), len(examples)).astype(np.uint16)
    flat = np.repeat(examples.input_ids.offsets[:-1], 4) + positions
    offsets = 4 * np.arange(len(examples) + 1)
    front = replace(
        examples,
        masked_lm_positions=Ragged(positions, offsets),
        masked_lm_labels=Ragged(examples.input_ids.values[flat], offsets),
    )
    lines = findings_of(front)
    assert any(line.startswith("part 1 of 8 of the rows has ") for line in lines), lines
    assert any(line.startswith("part 8 of 8 of the rows has 0 masks, not ") for line in lines)


def with_token(examples, place, token):
    """Another token at a place in `input_ids.values`."""
    ids = examples.input_ids.values.copy()
    ids[place] = token
    return replace(examples, input_ids=Ragged(ids, examples.input_ids.offsets))


def without_first_mask(examples, row):
    """The first masked token of the row restored and no longer masked."""
    labels, offsets = examples.masked_lm_labels.values, examples.masked_lm_labels.offsets
    at, fewer = offsets[row], offsets - (np.arange(len(offsets)) > row)
    return replace(
        with_token(examples, examples.flat_positions()[at], labels[at]),
        masked_lm_positions=Ragged(np.delete(examples.masked_lm_positions.values, at), fewer),
        masked_lm_labels=Ragged(np.delete(labels, at), fewer),
    )


def row_of_mask(examples, at):
    return int(np.searchsorted(examples.masked_lm_labels.offsets, at, side="right") - 1)


def test_one_mask_too_few():
    assert findings_of(without_first_mask(many_rows(), 7)) == [
        f"{NUMBER}: 1, the first at 7",
        f"{SEED}: 1, the first at 7",
    ]


def test_one_mask_too_many():
    """The rules of a longer prediction: rows of 24 tokens hide 5 instead of 4."""
    examples = many_rows()
    more = remasked(examples, masked_lm_prob=0.2, max_predictions_per_seq=5)
    counts = (more.masked_lm_positions.lengths != examples.masked_lm_positions.lengths).sum()
    lines = findings_of(more)
    assert any(line.startswith(f"{NUMBER}: {counts:,}, ") for line in lines), lines


def test_a_word_that_is_partly_masked():
    examples = many_rows(WHOLE)
    starts = np.flatnonzero(TOKENIZER.is_continuation[examples.masked_lm_labels.values])
    row = row_of_mask(examples, starts[0])
    examples = without_first_mask(examples, row)
    lines = findings_of(examples, WHOLE)
    assert f"{SEED}: 1, the first at {row}" in lines
    some = remasked(many_rows(WHOLE), CONFIG, masking="tokens", masked_lm_prob=0.3)
    lines = findings_of(some, WHOLE)
    assert any(line.startswith("rows with partly masked words: ") for line in lines), lines


def test_whole_words_of_which_one_more_would_have_fitted():
    examples = many_rows(WHOLE)
    words = ~TOKENIZER.is_continuation[examples.masked_lm_labels.values]
    whole = np.add.reduceat(words, examples.masked_lm_labels.offsets[:-1])
    row = int(np.argmax(whole == examples.masked_lm_labels.lengths))  # words of one piece alone
    lines = findings_of(without_first_mask(examples, row), WHOLE)
    assert f"{NUMBER}: 1, the first at {row}" in lines, lines


@pytest.mark.parametrize("config", [CONFIG, WHOLE])
def test_small_slabs_give_the_same_findings(monkeypatch, config):
    examples = without_first_mask(many_rows(config), 1234)
    whole = findings_of(examples, config)
    assert f"{SEED}: 1, the first at 1,234" in whole
    monkeypatch.setattr(mask_checks, "SLAB", 100)
    assert findings_of(examples, config) == whole


@pytest.mark.parametrize("piece", ["[unused0]", "[SEP]"])
def test_a_random_replacement_that_may_not_be_one(piece):
    examples = many_rows()
    shown = examples.input_ids.values[examples.flat_positions()]
    at = int(np.argmax((shown != TOKENIZER.mask_id) & (shown != examples.masked_lm_labels.values)))
    row, place = row_of_mask(examples, at), examples.flat_positions()[at]
    assert findings_of(with_token(examples, place, TOKENIZER.tokens.index(piece))) == [
        f"rows with a special or unused token as a random replacement: 1, the first at {row}",
        f"{SEED}: 1, the first at {row}",
    ]


def test_the_number_of_rows_that_the_seed_masks_otherwise():
    examples = many_rows()
    other = remasked(examples, replace(CONFIG, seed=1))
    [line] = findings_of(other)
    found = int(line.removeprefix(f"{SEED}: ").removesuffix(", the first at 0").replace(",", ""))
    assert 0.99 * len(examples) < found <= len(examples)  # some rows come out alike
    row = 999
    place = examples.flat_positions()[examples.masked_lm_positions.offsets[row]]
    changed = with_token(examples, place, 9 if examples.input_ids.values[place] != 9 else 10)
    assert findings_of(changed) == [f"{SEED}: 1, the first at {row}"]
