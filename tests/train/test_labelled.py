"""Labelled texts to tensors: columns, classes, truncation, batches, samples."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from clozeline.train.labelled.encoding import Encoder, evaluation_batches, training_batches
from clozeline.train.labelled.rows import (
    Labelled,
    class_ids,
    class_names,
    hold_out,
    label_notes,
    read_labelled,
    read_texts,
    sample,
)

WORDS = ["a", "b", "c", "##c", ",", "é", "##s"]
TOKENIZER = Tokenizer([*SPECIAL_TOKENS, *WORDS], Normalization(strip_accents=False, lowercase=True))
#: Also one that spells a special token, which is text here.
TEXT = st.text(alphabet="abcsé, xA\n中", max_size=12) | st.just("[SEP] a")
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=90).map(np.array)


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def labelled(labels):
    return Labelled([(f"text {i}",) for i in range(len(labels))], labels, "somewhere")


def test_columns_are_read_by_name_and_labels_are_text(tmp_path):
    source = write(tmp_path / "x.parquet", stars=[1, 10], title=["A", ""], content=["b", "c"])
    rows = read_labelled(source, text="title", text_pair="content", label="stars")
    assert rows.texts == [("A", "b"), ("", "c")]
    assert rows.labels == ["1", "10"]
    assert read_texts(source, text="content", text_pair=None) == [("b",), ("c",)]


def test_a_missing_column_is_answered_with_the_options_of_the_command(tmp_path):
    """`predict` has no --label."""
    source = write(tmp_path / "x.parquet", stars=[1], title=["A"])
    names = f"^{source} has no column '{{}}'; its columns are stars, title; name one of them with "
    with pytest.raises(InputError, match=f"{names.format('')}--text or --text-pair$"):
        read_texts(source, text="title", text_pair="")
    with pytest.raises(InputError, match=f"{names.format('s')}--text, --text-pair or --label$"):
        read_labelled(source, text="title", text_pair=None, label="s")


def test_several_columns_become_one_text_as_in_sources(tmp_path):
    source = write(tmp_path / "x.parquet", label=[1], title=["A"], content=["b\nc"], about=["d"])
    joined = read_labelled(source, text="title,content", text_pair=None, label="label")
    assert joined.texts == [("A\nb\nc",)]
    pair = read_texts(source, text="title,content", text_pair="about")
    assert pair == [("A\nb\nc", "d")]
    (block,) = list_blocks([f"{source}?text=title,content"])
    assert [(text,) for part in read_block(block) for text in part.texts] == joined.texts


@pytest.mark.parametrize(
    ("names", "rows", "classes"),
    [
        (["1.5", "0.5", "10.5"], 9, ("0.5", "1.5", "10.5")),
        ([f"{i}.5" for i in range(10)], 20, None),
        ([f"{i}.5" for i in range(11)], 21, "11 different ones in 21 rows, such as 0.5"),
        (["-1.5", "2e-3", "0.25"], 3, "look like numbers to predict, not like classes"),
        (["10", "9", "-1"], 3, ("-1", "9", "10")),  # whole numbers are classes, however many
        (["10", "9", "b"], 3, ("10", "9", "b")),
        (["1.5", "high"], 2, ("1.5", "high")),
        ([f"id-{i}" for i in range(1001)], 2001, "like names of rows, not like classes: 1,001 dif"),
        ([str(i) for i in range(1001)], 1001, "look like numbers to predict, not like classes"),
        ([f"id-{i:04}" for i in range(1001)], 2002, None),
        ([f"id-{i:04}" for i in range(1000)], 1000, None),
        (["a"], 2, "every row has the label 'a', but a classifier needs two classes"),
    ],
)
def test_labels_are_classes_where_they_repeat(names, rows, classes):
    given = labelled([names[row % len(names)] for row in range(rows)])
    if isinstance(classes, str):
        with pytest.raises(InputError, match=classes):
            class_names(given)
    else:
        assert class_names(given) == (classes or tuple(sorted(names)))


OWN = "each of these labels is a class of its own: "
ALIKE = " differ only in how they are written"
MAY_BE = "(3 rows) may stand for a missing value."
OFTEN = ["Positive", "Negative"] * 5


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["Good", "good ", "bad"] * 2, f"{OWN}'Good' (2 rows) and 'good ' (2 rows){ALIKE}."),
        (["1", "01", "1.0", "0"] * 2, "'1' (2 rows) and '01' (2 rows) and '1.0' (2 rows)"),
        (["0", "-0", "1e3", "1000"] * 2, "and '-0' (2 rows), '1e3' (2 rows) and '1000' (2"),
        (["caf\u00e9", "cafe\u0301", "\uff42", "B"] * 2, "'\uff42' (2 rows) and 'B' (2 rows)"),
        (["very good", "very\u00a0 good", "x"] * 2, "and 'very\\xa0 good' (2 rows)"),
        (["a", "a\u200b", "\ufeffb", "B"] * 2, "'a' (2 rows) and 'a\\u200b' (2 rows), "),
        (["STRASSE", "stra\u00dfe", "x"] * 2, "'STRASSE' (2 rows) and 'stra\u00dfe' (2 rows)"),
        ([*"aAbBcCdDeE"] * 2, f"'C' (2 rows) and 2 more{ALIKE}."),
        *(
            ([word] * 3 + ["a", "b"] * 2, f"{OWN}{word!r} {MAY_BE}")
            for word in ("nan", "None", "null", "NULL", "N/A", " NaN")
        ),
        (["nan"] * 3 + ["a", "A"] * 2, f"'A' (2 rows){ALIKE}; 'nan' {MAY_BE}"),
        (["x", *OFTEN], "only one training row has the label 'x'."),
        ([*"xyzvw", *OFTEN], "only one training row has the label 'x', 'y', 'z' and 2 more."),
        (["0", "1"] * 2, None),
        (["very good", "verygood"] * 2, None),
        (["e", "\u00e9"] * 2, None),
        (["10000000000000001", "10000000000000002"] * 2, None),  # to a float these are alike
        (["none of these", "nothing"] * 2, None),
        (["a", "b", "c"], None),  # each row its own class: refused later
    ],
)
def test_labels_that_may_be_mistakes_are_named_in_one_note(names, note):
    notes = label_notes(labelled(names))
    assert len(notes) == (note is not None)
    if note:
        assert note in notes[0]
        assert notes[0].startswith((OWN, "only one training row has "))
        assert notes[0].endswith(".")


@pytest.mark.parametrize(
    ("label", "names", "said"),
    [
        ("bad ", ("bad", "good"), "'bad' differs only in how it is written"),
        ("NO", ("no", "yes"), "'no' differs only in how it is written"),
        ("1.0", ("0", "1", "01"), "'1', '01' differs only in how it is written"),  # of two classes
        *(
            (label, ("0", "10", "Infinity", "10000000000000002"), "which no training row has")
            for label in ("1_0", "inf", "1.5", "10000000000000001")
        ),
    ],
)
def test_a_test_label_that_is_not_one_of_the_classes_is_refused(label, names, said):
    with pytest.raises(InputError, match=said):
        class_ids(labelled([label]), names)


@pytest.mark.parametrize("label", ["1.0", "01", "+1", " 1e0"])
def test_a_test_label_that_is_the_number_of_one_class_is_read_as_that(label):
    assert class_ids(labelled(["0", label, "1", label]), ("0", "1")).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "label": [0.5]}, "'label' holds double"),
        ({"text": ["a"], "label": [[1]]}, "'label' holds list"),
        ({"text": [7], "label": [1]}, "'text' holds int64, not text"),
        ({"text": ["a", None], "label": [1, 0]}, "row 2 has no 'text'"),
        ({"text": ["a", "b"], "label": ["1", "much"]}, "does not hold numbers"),  # to predict
        ({"text": ["a", "b"], "label": [1.0, math.nan]}, "row 2 is not a finite"),
    ],
)
def test_columns_that_will_not_do_are_named(tmp_path, columns, message):
    source = write(tmp_path / "x.parquet", **columns)
    how = {"text": "text", "text_pair": None, "label": "label"}
    with pytest.raises(InputError, match=message):
        read_labelled(source, is_regression="number" in message or "finite" in message, **how)


def test_classes_are_places_among_the_names_and_another_is_named_with_its_row():
    assert class_ids(labelled(["b", "a", "b"]), ("a", "b")).tolist() == [1, 0, 1]
    long = [f"the text of another column {'more ' * 900}{number}" for number in range(12)]
    with pytest.raises(InputError) as refusal:
        class_ids(labelled(["a"]), long)
    assert len(str(refusal.value)) < 600
    message = r"row 2 has the label 'c', which no training row has; the classes are a, b\."
    with pytest.raises(InputError, match=message):
        class_ids(labelled(["a", "c", "d"]), ("a", "b"))


@given(st.integers(2, 60), st.integers(0, 5))
def test_held_out_rows_and_the_others_are_all_rows_with_their_labels(size, seed):
    classes = 3 if size > 30 else 1  # or a class might lose all of its rows
    rows = labelled([str(i % classes) for i in range(size)])
    label_of = dict(zip(rows.texts, rows.labels, strict=True))
    train, test = hold_out(rows, seed=seed)
    for part in (train, test):
        assert part.labels == [label_of[text] for text in part.texts]
    parts = [train.texts, test.texts]
    assert sorted(parts[0] + parts[1]) == sorted(rows.texts)
    assert len(test) == max(1, round(size / 10))
    assert parts == [[text for text in rows.texts if text in part] for part in parts]


def test_a_class_of_one_row_is_trained_on_and_one_row_cannot_be_held_out():
    rows = labelled(["a"] * 15 + ["b"])
    for seed in range(10):
        assert "b" in hold_out(rows, seed=seed)[0].labels
    with pytest.raises(InputError, match="has too few rows to hold some out"):
        hold_out(labelled(["a"]), seed=0)


def test_a_smaller_sample_begins_a_larger_one():
    rows = labelled([str(i) for i in range(50)])
    small, large = sample(rows, 7, seed=3), sample(rows, 20, seed=3)
    assert large.labels[:7] == small.labels
    assert sample(rows, 7, seed=4).labels != small.labels
    assert len(sample(rows, 99, seed=3)) == 50


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6), st.integers(8, 14), st.booleans())
def test_without_its_middle_a_quarter_of_what_is_kept_is_the_start(rows, max_seq_length, is_pair):
    texts = rows if is_pair else [row[:1] for row in rows]
    end, start, middle = (
        Encoder(TOKENIZER, max_seq_length=max_seq_length, truncate=truncate).encode(texts)
        for truncate in ("end", "start", "middle")
    )
    whole = Encoder(TOKENIZER, max_seq_length=99).encode(texts)
    assert middle.length_a.tolist() == end.length_a.tolist() == start.length_a.tolist()
    assert middle.is_cut.tolist() == (middle.input_ids.lengths < whole.input_ids.lengths).tolist()
    for row, length_a in enumerate(middle.length_a.tolist()):
        first, last, found = (
            encoded.input_ids.take(np.array([row])).values.tolist()
            for encoded in (end, start, middle)
        )
        ends = [length_a, len(found)] if is_pair else [length_a]
        for begin, after in pairwise([1, *ends]):
            quarter = begin + math.ceil((after - 1 - begin) / 4)  # [SEP] apart
            assert found[begin:after] == first[begin:quarter] + last[quarter:after]


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6),
    st.integers(8, 14),
    st.booleans(),
    st.sampled_from([("end", "right"), ("start", "left")]),
)
def test_rows_are_those_of_the_library(rows, max_seq_length, is_pair, sides):
    truncate, direction = sides
    library = tokenizers.Tokenizer.from_str(TOKENIZER.library.to_str())
    library.encode_special_tokens = True
    library.enable_truncation(max_seq_length, strategy="longest_first", direction=direction)
    asked: list[Any] = rows if is_pair else [a for a, _ in rows]
    wanted = library.encode_batch(asked)
    texts = rows if is_pair else [row[:1] for row in rows]
    found = Encoder(TOKENIZER, max_seq_length=max_seq_length, truncate=truncate).encode(texts)
    input_ids, token_types, mask = found.inputs(np.arange(len(rows)))
    for i, encoding in enumerate(wanted):
        assert input_ids[i][mask[i]].tolist() == encoding.ids
        assert token_types[i][mask[i]].tolist() == encoding.type_ids
        assert not token_types[i][~mask[i]].any()
        assert set(input_ids[i][~mask[i]].tolist()) <= {TOKENIZER.pad_id}


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6), st.integers(8, 14), st.booleans())
def test_cut_texts_have_the_tokens_that_are_read(rows, max_seq_length, is_pair):
    texts = rows if is_pair else [row[:1] for row in rows]
    encoder = Encoder(TOKENIZER, max_seq_length=max_seq_length)
    truncated = encoder.shortened(texts)
    whole, short = encoder.encode(texts), encoder.encode(truncated)
    assert short.input_ids.values.tolist() == whole.input_ids.values.tolist()
    for before, after in zip(texts, truncated, strict=True):
        assert all(b.startswith(a) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("truncate", "kept"), [("end", "a, bcs"), ("start", "bcs a b"), ("middle", "a, s a b")]
)
def test_the_characters_of_what_is_kept(truncate, kept):
    """Five of the tokens a , b ##c ##s a b; a space where the middle was."""
    encoder = Encoder(TOKENIZER, max_seq_length=7, truncate=truncate)
    assert encoder.shortened([("a, bcs a b",), ("a",)]) == [(kept,), ("a",)]


@given(LENGTHS, st.integers(1, 9), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_reads_every_row_once(lengths, batch_size, seed, epoch):
    batches = training_batches(lengths, batch_size=batch_size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert sorted(map(len, batches))[1:] == [batch_size] * (len(batches) - 1)


def test_each_epoch_and_seed_has_another_order():
    lengths = np.full(200, 5)
    orders, companies = set(), set()
    for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]:
        batches = training_batches(lengths, batch_size=8, seed=seed, epoch=epoch)
        orders.add(tuple(np.concatenate(batches).tolist()))
        companies.add(frozenset(frozenset(batch.tolist()) for batch in batches))
    assert len(orders) == len(companies) == 3


def test_rows_of_like_length_meet():
    lengths = np.arange(400) % 40
    batches = training_batches(lengths, batch_size=10, seed=0, epoch=0)
    spans = [np.ptp(lengths[batch]) for batch in batches]
    assert np.mean(spans) < 4  # of 40 at random: 33


@given(LENGTHS, st.sampled_from(["cpu", "meta"]))
def test_evaluation_batches_hold_every_row_once_by_length(lengths, to):
    """On a CPU few rows in as many columns as they need; elsewhere the first of four that fits."""
    texts = [("a " * int(length),) for length in lengths]
    rows = Encoder(TOKENIZER, max_seq_length=30).encode(texts)
    found = list(evaluation_batches(rows, torch.device(to)))
    order = np.concatenate([batch for batch, _ in found])
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(rows.input_ids.lengths[order]) >= 0).all()
    for batch, (input_ids, _, mask) in found:
        assert len(batch) <= (16 if to == "cpu" else 128)
        assert mask.sum(1).tolist() == rows.input_ids.lengths[batch].tolist()
        widths = (8, 16, 24, 30) if to == "cpu" else (8, 15, 23, 30)
        assert input_ids.shape[1] == min(width for width in widths if width >= mask.sum(1).max())


def test_the_order_of_an_epoch_is_frozen():
    batches = training_batches(np.array([3, 1, 4, 1, 5, 9, 2]), batch_size=3, seed=0, epoch=1)
    assert [batch.tolist() for batch in batches] == [[5], [3, 1, 6], [0, 2, 4]]
