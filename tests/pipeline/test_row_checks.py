"""The checks of rows: what holds for every shard, and each way of breaking it."""

from dataclasses import replace
from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig, Masking, PairScheme
from clozeline.pipeline.verify.findings import Findings, ShardRows, differing_rows, rows_with
from clozeline.pipeline.verify.row_checks import check_rows
from tests.pipeline.test_examples import DOCUMENT, TALK, documents_of, examples_of
from tests.support.small import make_examples, small_tokenizer
from tests.support.small_data import masked

TOKENIZER = small_tokenizer()
CONFIG = DataConfig(max_seq_length=24, num_shards=1)


def remasked(examples, config=CONFIG, **changes):
    """The same originals, masked by other rules."""
    config = replace(config, **changes)
    return masked(examples.unmasked(), split="train", shard=0, config=config, of=TOKENIZER)


def shard_of(examples, config, **dropped):
    given = {"split": "train", "shard": 0, "copies": config.dupe_factor, **dropped}
    return ShardRows(examples=examples, config=config, tokenizer=TOKENIZER, **given)


def findings_of(examples, config=CONFIG, **dropped):
    shard = shard_of(examples, config, **dropped)
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
    examples, dropped = examples_of(documents_of(shape), config)
    assert findings_of(examples, config, nothing_to_mask=dropped["nothing_to_mask"]) == []


def test_rows_stand_in_the_order_of_their_documents_once_for_each_copy():
    twice = replace(CONFIG, dupe_factor=2)
    examples, _ = examples_of(documents_of(TALK), twice)
    assert findings_of(examples, twice) == []
    found = findings_of(remasked(examples), CONFIG)
    [second_copy] = np.flatnonzero(np.diff(examples.document_a.astype(np.int64)) < 0) + 1
    assert found == [f"rows not in the order of their documents: 1, the first at {second_copy}"]


def test_a_span_that_is_cut_short_inside_its_document():
    config = replace(CONFIG, pairs="none")
    examples, _ = examples_of(documents_of([[[30]], [[30]]]), config)
    swapped = remasked(examples.take(np.array([1, 0, 2, 3])), config)
    assert findings_of(swapped, config) == [
        "rows cut short inside their document: 1, the first at 0"
    ]


def test_more_random_pairs_than_are_balanced_out():
    examples, _ = examples_of(documents_of(TALK))
    random = int((examples.next_sentence_label == 1).sum())
    follows = np.flatnonzero(examples.next_sentence_label == 0)
    fewer = remasked(examples.take(np.setdiff1d(np.arange(len(examples)), follows[:3])))
    left = len(follows) - 3
    assert findings_of(fewer) == [
        f"{random} random and {left} following pairs are not balanced as --pairs segments requires"
    ]
    assert findings_of(fewer, nothing_to_mask=3) == []


def test_as_many_neighbours_that_follow_as_random_ones():
    config = replace(CONFIG, pairs="sentences")
    examples, _ = examples_of(documents_of(TALK), config)
    half = len(examples) // 2
    lost = remasked(examples.take(np.delete(np.arange(len(examples)), 1)), config)
    assert findings_of(lost, config) == [
        f"{half - 1} random and {half} following pairs are not balanced as --pairs sentences "
        "requires"
    ]
    assert findings_of(lost, config, nothing_to_mask=1) == []


def test_the_fraction_of_random_pairs_has_bounds():
    examples, _ = examples_of(documents_of([[[6] * 12]] * 2000))
    assert len(examples) > 5000
    is_random = np.flatnonzero(examples.next_sentence_label == 1)
    everything = np.arange(len(examples))
    assert findings_of(examples) == []
    fewer = np.setdiff1d(everything, is_random[: len(everything) // 10])
    assert len(fewer) > 4096
    [finding] = findings_of(remasked(examples.take(fewer)))
    assert finding.endswith("% of the pairs are random, not 48-52 %")
    assert findings_of(remasked(examples.take(fewer[:4000]))) == []  # too few to tell


def test_a_data_set_of_one_document_has_no_random_pairs_and_no_findings():
    config = DataConfig(max_seq_length=8, pairs="sentences")
    examples, _ = examples_of(documents_of([[[3] * 5000]]), config)
    assert len(examples) > 4096
    assert not (examples.next_sentence_label == 1).any()
    assert findings_of(examples, config) == []


def test_rows_without_the_shape_of_examples_are_counted_and_not_checked_further():
    rows = make_examples([[2, 9, 3, 9, 3], [2, 9], [2, 9, 999, 3, 9, 3]], length_a=[3, 2, 4])
    shard = shard_of(rows, replace(CONFIG, pairs="none"))
    assert not check_rows(shard)
    assert shard.findings.lines() == [
        "rows shorter than 3 or longer than 24 tokens: 1, the first at 1",
        "rows with an empty A, or a length_a beyond the row: 1, the first at 1",
        f"rows with ids beyond the vocabulary of {TOKENIZER.vocab_size}: 1, the first at 2",
    ]


def test_findings_of_one_kind_are_one_line():
    findings = Findings()
    findings.note(np.array([False, False]), "nothing")
    findings.note(np.array([False, True, True]), "this", first=1000)
    findings.add("that")
    findings.note(np.array([7, 7, 5]), "this")
    assert findings.lines() == ["this: 4, the first at 5", "that"]


def test_rows_with_a_flagged_value():
    ragged = Ragged(np.zeros(6), offsets_of([2, 0, 3, 1]))
    assert rows_with(np.array([1, 1, 0, 0, 1, 1], dtype=bool), ragged).tolist() == [0, 2, 3]


def test_differing_rows_are_those_with_another_value_in_any_column():
    rows = make_examples([[2, 9, 3], [2, 9, 10, 3], [2, 11, 3], [2, 9, 3]], length_a=[3, 4, 3, 3])
    assert differing_rows(rows, rows).tolist() == []
    ids = rows.input_ids.values.copy()
    ids[5] += 1
    other = replace(rows, input_ids=Ragged(ids, rows.input_ids.offsets))
    assert differing_rows(rows, other).tolist() == [1]
    documents = rows.document_b.copy()
    documents[2] += 1
    assert differing_rows(rows, replace(rows, document_b=documents)).tolist() == [2]
    assert differing_rows(rows, rows.take(np.array([0, 3, 2, 1]))).tolist() == [1, 3]
    assert differing_rows(rows, rows.take(np.array([0, 2]))).tolist() == [1]


def test_order_pairs_are_swapped_half_of_the_time_inside_one_document():
    order = replace(CONFIG, pairs="order")
    examples, _ = examples_of(documents_of(TALK * 40), order)
    assert len(examples) > 100
    assert findings_of(examples, order) == []
    label = examples.next_sentence_label
    swapped = replace(examples, next_sentence_label=np.ones_like(label))
    assert findings_of(swapped, order) == ["100.0% of the pairs are swapped, not 50 %"]
    document_b = examples.document_b.copy()
    document_b[3] += 1
    assert findings_of(replace(examples, document_b=document_b), order) == [
        "rows with A and B from different documents: 1, the first at 3"
    ]
