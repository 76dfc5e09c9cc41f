"""Collation against a straight-line reference, and the data digest."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples
from clozeline.train.data.batch import collate, digest_text
from clozeline.train.data.shard_set import blank_examples
from tests.support.batches import batch_digest, concatenate

S, P, PAD = 9, 3, 5

ids = st.integers(6, 60_000)
example = st.integers(2, S).flatmap(
    lambda length: st.fixed_dictionaries(
        {
            "ids": st.lists(ids, min_size=length, max_size=length),
            "masks": st.dictionaries(st.integers(0, length - 1), ids, max_size=P),
            "length_a": st.integers(1, length),
            "label": st.integers(-1, 1),
        }
    )
)
examples_and_rows = st.lists(example, min_size=1, max_size=8).flatmap(
    lambda rows: st.tuples(st.just(rows), st.lists(st.integers(0, len(rows) - 1), max_size=12))
)


def ragged(rows):
    flat = np.array([value for row in rows for value in row], dtype=np.uint16)
    return Ragged(flat, offsets_of([len(row) for row in rows]))


def to_examples(rows):
    nobody = np.zeros(len(rows), np.uint64)
    return Examples(
        input_ids=ragged([row["ids"] for row in rows]),
        masked_lm_positions=ragged([sorted(row["masks"]) for row in rows]),
        masked_lm_labels=ragged([[row["masks"][p] for p in sorted(row["masks"])] for row in rows]),
        length_a=np.array([row["length_a"] for row in rows], np.uint16),
        next_sentence_label=np.array([row["label"] for row in rows], np.int8),
        document_a=nobody,
        document_b=nobody,
    )


def reference(row):
    """One example, slot by slot."""
    length, masks = len(row["ids"]), sorted(row["masks"])
    return {
        "input_ids": [row["ids"][s] if s < length else PAD for s in range(S)],
        "token_type_ids": [int(row["length_a"] <= s < length) for s in range(S)],
        "attention_mask": [s < length for s in range(S)],
        "masked_lm_positions": [masks[p] if p < len(masks) else 0 for p in range(P)],
        "masked_lm_labels": [row["masks"][masks[p]] if p < len(masks) else 0 for p in range(P)],
        "masked_lm_weights": [float(p < len(masks)) for p in range(P)],
        "next_sentence_labels": row["label"],
        "example_weights": 1.0,
    }


SIZES = {"max_seq_length": S, "max_predictions": P, "pad_id": PAD}


def make(rows, chosen=None):
    chosen = np.arange(len(rows)) if chosen is None else np.array(chosen, dtype=np.int64)
    return collate(to_examples(rows), chosen, **SIZES)


def random_rows(count):
    rng = np.random.default_rng(count)
    return [
        {
            "ids": rng.integers(6, 60_000, length).tolist(),
            "masks": {int(p): int(rng.integers(6, 60_000)) for p in rng.choice(length, 2, False)},
            "length_a": int(rng.integers(1, length)),
            "label": int(rng.integers(-1, 2)),
        }
        for length in rng.integers(4, S + 1, count)
    ]


@given(examples_and_rows)
def test_every_slot_equals_the_straight_line_reference(given_rows):
    rows, chosen = given_rows
    batch = make(rows, chosen)
    wanted = [reference(rows[i]) for i in chosen]
    types = {"attention_mask": torch.bool, "masked_lm_weights": torch.float32}
    types["example_weights"] = torch.float32
    for name, tensor in batch.tensors().items():
        assert tensor.tolist() == [row[name] for row in wanted], name
        assert tensor.dtype == types.get(name, torch.int64)


def test_ids_over_16_bits_are_kept_and_memory_is_not_shared():
    examples, row = to_examples([{"ids": [7, 8], "masks": {}, "length_a": 2, "label": 1}] * 2), [1]
    wide = replace(examples, input_ids=Ragged(np.full(4, 250_001, np.uint32), offsets_of([2, 2])))
    batch = collate(wide, np.array(row), **SIZES)
    assert batch.input_ids.tolist() == [[250_001, 250_001, *[PAD] * 7]]
    batch.input_ids.fill_(0)
    assert (wide.input_ids.values == 250_001).all()


def test_micro_batches_are_views_that_make_up_the_batch():
    batch = make(random_rows(12))
    for parts in (1, 2, 3, 4, 12):
        micro_batches = batch.split(parts)
        assert {len(micro) for micro in micro_batches} == {12 // parts}
        joined = concatenate(micro_batches).tensors()
        assert all(torch.equal(joined[k], v) for k, v in batch.tensors().items())
    batch.split(2)[1].input_ids[0, 0] = 77
    assert batch.input_ids[6, 0] == 77
    with pytest.raises(AssertionError, match="5 equal parts"):
        batch.split(5)


def test_padding_rows_have_weight_0_and_no_tokens():
    batch = make(random_rows(3))
    with_blank = concatenate_examples(
        [to_examples(random_rows(3)), blank_examples(1, PAD, packed=False)]
    )
    rows = np.array([0, 1, 2, 3, 3])
    padded = collate(with_blank, rows, **SIZES)
    assert padded.num_tokens == batch.num_tokens == sum(len(row["ids"]) for row in random_rows(3))
    assert padded.example_weights.tolist() == [1, 1, 1, 0, 0]
    assert padded.masked_lm_weights[3:].sum() == 0
    assert padded.next_sentence_labels[3:].tolist() == [-1, -1]
    assert padded.input_ids[3:].unique().tolist() == [PAD]
    assert padded.attention_mask.any(1).all()  # softmax over nothing would be NaN
    assert batch_digest(padded, 40) == batch_digest(batch, 40)


def test_the_digest_of_a_batch_is_the_sum_of_its_parts_digests():
    batch = make(random_rows(12))
    whole = digest_text(batch_digest(batch, 100))
    for parts in (2, 3, 4):
        size = 12 // parts
        terms = [batch_digest(p, 100 + i * size) for i, p in enumerate(batch.split(parts))]
        assert digest_text(*terms) == digest_text(*reversed(terms)) == whole
        wrapped = torch.tensor(terms).sum().item()  # what an all_reduce gives
        assert digest_text(int(wrapped)) == whole


@pytest.mark.parametrize("name", [
    *("input_ids", "token_type_ids", "next_sentence_labels"),
    *("masked_lm_positions", "masked_lm_labels"),
])  # fmt: skip
def test_the_digest_changes_with_any_single_value(name):
    batch = make(random_rows(4))
    before = batch_digest(batch, 0)
    column = batch.tensors()[name]
    for index in np.ndindex(*column.shape):
        column[index] += 1
        assert batch_digest(batch, 0) != before
        column[index] -= 1
    assert batch_digest(batch, 0) == before


def test_the_digest_depends_on_the_order_and_the_position():
    batch = make(random_rows(4))
    other = make(random_rows(4), [1, 0, 2, 3])
    assert len({batch_digest(batch, 0), batch_digest(batch, 1), batch_digest(other, 0)}) == 3


def test_the_digest_never_changes():
    row = {"ids": [6, 7, 8, 9], "masks": {1: 11, 2: 12}, "length_a": 3, "label": 1}
    assert digest_text(batch_digest(make([row]), 1000)) == "a35c6bb8462d8721"
    assert digest_text(-1) == digest_text(2**64 - 1) == "f" * 16
