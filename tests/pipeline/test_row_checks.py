"""The checks of rows and masks: what holds for every shard, and each way of breaking it."""

from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig, Masking, PairScheme
from clozeline.pipeline.verify import row_checks
from clozeline.pipeline.verify.row_checks import ShardRows, check_rows
from tests.pipeline.test_examples import DOCUMENT, TALK, documents_of, examples_of
from tests.support.small import make_examples, small_tokenizer
from tests.support.small_data import masked

TOKENIZER = small_tokenizer()
CONFIG = DataConfig(max_seq_length=24, num_shards=1)


def shard_of(examples, config):
    given = {"split": "train", "shard": 0, "copies": config.dupe_factor}
    return ShardRows(examples=examples, config=config, tokenizer=TOKENIZER, **given)


def findings_of(examples, config=CONFIG):
    shard = shard_of(examples, config)
    check_rows(shard)
    return shard.findings.lines()


@settings(max_examples=60)
@given(
    st.lists(DOCUMENT, max_size=6),
    st.sampled_from(get_args(PairScheme)),
    st.sampled_from(get_args(Masking)),
    st.integers(1, 3),
    st.integers(8, 40),
    st.integers(0, 1000),
)
def test_whatever_is_made_is_sound(shape, kind, masking, copies, length, seed):
    config = DataConfig(
        max_seq_length=length, pairs=kind, masking=masking, dupe_factor=copies, seed=seed
    )
    examples, _ = examples_of(documents_of(shape), config)
    assert findings_of(examples, config) == []


def test_rows_stand_in_the_order_of_their_documents_once_for_each_copy():
    twice = replace(CONFIG, dupe_factor=2)
    examples, _ = examples_of(documents_of(TALK), twice)
    assert findings_of(examples, twice) == []
    original, once = examples.unmasked(), {"split": "train", "shard": 0, "config": CONFIG}
    found = findings_of(masked(original, **once, of=TOKENIZER), CONFIG)
    [second_copy] = np.flatnonzero(np.diff(examples.document_a.astype(np.int64)) < 0) + 1
    assert found == [f"rows not in the order of their documents: 1, the first at {second_copy}"]


def test_rows_without_the_shape_of_examples_are_counted_and_not_checked_further():
    rows = make_examples([[2, 9, 3, 9, 3], [2, 9], [2, 9, 999, 3, 9, 3]], length_a=[3, 2, 4])
    shard = shard_of(rows, replace(CONFIG, pairs="none"))
    assert not check_rows(shard)
    assert shard.findings.lines() == [
        "rows shorter than 3 or longer than 24 tokens: 1, the first at 1",
        "rows with an empty A, or a length_a beyond the row: 1, the first at 1",
        f"rows with ids beyond the vocabulary of {TOKENIZER.vocab_size}: 1, the first at 2",
    ]


def test_order_pairs_are_of_one_document():
    order = replace(CONFIG, pairs="order")
    examples, _ = examples_of(documents_of(TALK * 40), order)
    document_b = examples.document_b.copy()
    document_b[3] += 1
    assert findings_of(replace(examples, document_b=document_b), order) == [
        "rows with A and B from different documents: 1, the first at 3"
    ]


# --- The checks of masks: those of the config and the seed ----------------------------------------
WHOLE = replace(CONFIG, masking="whole-words", masked_lm_prob=0.3)
SEED = "rows with masks other than those of the config and the seed"


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


@pytest.mark.parametrize("config", [CONFIG, WHOLE])
def test_one_mask_too_few_is_found_in_slabs_of_any_size(monkeypatch, config):
    examples = without_first_mask(many_rows(config), 1234)
    for slab in (8192, 100):
        monkeypatch.setattr(row_checks, "SLAB", slab)
        assert findings_of(examples, config) == [f"{SEED}: 1, the first at 1,234"]


@pytest.mark.parametrize("piece", ["[unused0]", "[SEP]"])
def test_another_random_replacement_is_found(piece):
    examples = many_rows()
    shown = examples.input_ids.values[examples.flat_positions()]
    at = int(np.argmax((shown != TOKENIZER.mask_id) & (shown != examples.masked_lm_labels.values)))
    row = int(np.searchsorted(examples.masked_lm_labels.offsets, at, side="right") - 1)
    place = examples.flat_positions()[at]
    assert findings_of(with_token(examples, place, TOKENIZER.tokens.index(piece))) == [
        f"{SEED}: 1, the first at {row:,}"
    ]


PACKED = replace(CONFIG, pairs="packed")


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("piece_lengths", lambda a, b: (a + 1, b), ["rows that their pieces do not make up"]),
        (
            "piece_lengths",
            lambda a, b: (a + 1, b - 1),  # the border is elsewhere
            ["rows with pieces that are not from [CLS] to [SEP]"],
        ),
        (
            "piece_documents",
            lambda a, b: (b, a),
            [
                "rows with pieces in disorder",
                "rows whose A or B is not from their first or last piece",
            ],
        ),
    ],
)
def test_a_first_row_of_two_pieces_that_is_changed(name, change, expected):
    examples, _ = examples_of(documents_of([[[8]], [[9]], [[30]], [[5]], [[3]], [[12]]]), PACKED)
    assert examples.piece_lengths.lengths[0] == 2
    column = getattr(examples, name)
    values = column.values.copy()
    values[:2] = change(*values[:2].tolist())
    lines = findings_of(replace(examples, **{name: Ragged(values, column.offsets)}), PACKED)
    assert {line for line in lines if "masks" not in line} == {
        f"{problem}: 1, the first at 0" for problem in expected
    }


def test_shards_without_pieces_do_not_pass_for_packed_ones():
    pairs = replace(PACKED, pairs="none")
    examples, _ = examples_of(documents_of(TALK), pairs)
    assert findings_of(examples, PACKED) == [
        "packed rows do not fit --pairs packed, or lack their pieces"
    ]
