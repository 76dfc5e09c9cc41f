"""Packed rows: every token once, whole documents where they fit, rows as full as best fit makes."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.dataset.schema import NO_PAIR, Examples, example_schema
from clozeline.pipeline.dataset.shards import read_shard, rows_sha256, write_shard
from clozeline.pipeline.examples.packed_rows import best_fit, pack_documents
from clozeline.pipeline.report.dataset_chapter import count_rows
from clozeline.pipeline.report.inspect import example_lines, inspect_dataset, shown_example
from tests.pipeline.test_examples import TALK, documents_of, examples_of
from tests.pipeline.test_pairs import SHAPE, tokens_of_documents
from tests.pipeline.test_row_checks import findings_of
from tests.pipeline.test_steps import CONFIG as JOB
from tests.pipeline.test_steps import build, work
from tests.support.small import make_documents, small_tokenizer

TOKENIZER = small_tokenizer()
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id
CONFIG = DataConfig(max_seq_length=24, num_shards=1, pairs="packed")
LENGTHS = st.lists(st.integers(3, 24), max_size=60)


def rows_of(shape, length=24):
    """Rows as lists of (start, stop, document)."""
    rows = pack_documents(make_documents(shape), max_seq_length=length)
    pieces = list(zip(*(x.tolist() for x in (rows.start, rows.stop, rows.document)), strict=True))
    return [pieces[i:j] for i, j in zip(rows.row_offsets, rows.row_offsets[1:], strict=False)]


def test_a_literal_packing():
    lengths = [11, 4, 3]  # as in the module's docstring
    assert rows_of([[[tokens]] for tokens in lengths], 10) == [
        [(0, 8, 0)],
        [(8, 11, 0), (15, 18, 2)],
        [(11, 15, 1)],
    ]
    assert best_fit(np.array([7, 2, 3, 5]), 10).tolist() == [0, 1, 0, 1]
    assert best_fit(np.array([3, 5, 10, 4, 8]), 12).tolist() == [0, 0, 1, 2, 2]


@given(SHAPE, st.integers(8, 64))
def test_every_token_is_in_one_piece_and_no_piece_leaves_its_document(shape, length):
    rows = rows_of(shape, length)
    pieces = [piece for row in rows for piece in row]
    tokens = [token for start, stop, _ in pieces for token in range(start, stop)]
    assert sorted(tokens) == list(range(tokens_of_documents(shape)[-1][1] if shape else 0))
    edges = tokens_of_documents(shape)
    for start, stop, document in pieces:
        first, end = edges[document]
        assert first <= start < stop <= end
        is_rest = stop == end
        assert is_rest or stop - start == length - 2  # cut only where a row is full
    assert all(row == sorted(row) for row in rows)
    assert rows == sorted(rows)
    assert all(sum(stop - start + 2 for start, stop, _ in row) <= length for row in rows)


def slow_best_fit(lengths, room):
    """The rows by the definition: the longest first, into the fullest row with room for it."""
    rows = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= room]
        if fitting:
            max(fitting, key=sum).append(length)
        else:
            rows.append([length])
    return sorted(rows)


@given(LENGTHS)
def test_best_fit_is_the_textbooks(lengths):
    found = best_fit(np.array(lengths, np.int64), 24)
    rows = {}
    for row, length in zip(found.tolist(), lengths, strict=True):
        rows.setdefault(row, []).append(length)
    assert sorted(rows) == list(range(len(rows)))
    totals = sorted(map(sum, rows.values()))
    assert totals == sorted(map(sum, slow_best_fit(lengths, 24)))


def test_a_row_has_the_tokens_of_its_pieces_between_special_tokens():
    documents = documents_of([[[30]], [[5]], [[9]], [[2]]])
    examples, dropped = examples_of(documents, CONFIG)
    assert not dropped.total()
    original = examples.unmasked().input_ids.values
    bounds = offsets_of(examples.piece_lengths.values)
    of_document = {}
    for piece, document in enumerate(examples.piece_documents.values.tolist()):
        ids = original[bounds[piece] : bounds[piece + 1]]
        assert (ids[0], ids[-1]) == (CLS, SEP)
        of_document.setdefault(document, []).extend(ids[1:-1].tolist())
    ends = documents.sentence_offsets[documents.document_offsets]
    for number, document in enumerate(documents.hashes.tolist()):
        assert of_document[document] == documents.ids[ends[number] : ends[number + 1]].tolist()
    assert (examples.next_sentence_label == NO_PAIR).all()
    assert (examples.length_a == examples.input_ids.lengths).all()
    first = examples.piece_documents.offsets
    assert (examples.document_a == examples.piece_documents.values[first[:-1]]).all()
    assert (examples.document_b == examples.piece_documents.values[first[1:] - 1]).all()


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_packed_shards_have_two_columns_more_and_their_own_version(tmp_path, format):
    examples, _ = examples_of(documents_of(TALK), CONFIG)
    schema = example_schema(TOKENIZER.vocab_size, "digest", packed=True)
    path = tmp_path / ("s.tar" if format == "webdataset" else "s.arrow")
    written = write_shard(path, examples, schema, format=format, compression=None)
    read = read_shard(path)
    assert rows_sha256(read) == written.rows_sha256 == rows_sha256(examples)
    assert list(read.columns())[-2:] == ["piece_lengths", "piece_documents"]
    assert schema.metadata[b"clozeline.schema_version"] == b"2"
    assert schema.field("piece_lengths").type.value_type == pa.uint16()
    for name in ("piece_lengths", "piece_documents"):  # the digest covers them
        column = getattr(examples, name)
        changed = replace(examples, **{name: Ragged(column.values + 1, column.offsets)})
        assert rows_sha256(changed) != written.rows_sha256


# ---- the data set as a whole --------------------------------------------------------------------


def test_a_packed_data_set_has_the_version_of_its_shards(tmp_path):
    build(*work(tmp_path, replace(JOB, pairs="packed")))
    data_set = tmp_path / "out"
    manifest = read_manifest(data_set)
    assert manifest.schema_version == 2
    lines = list(inspect_dataset(data_set, number=2, seed=0, width=80))
    assert ", pairs: packed," in lines[0]
    assert any(line.startswith("  piece 1  ") for line in lines)
    text = (data_set / MANIFEST).read_text()
    assert '"schema_version": 2' in text


def test_a_packed_row_is_shown_piece_by_piece():
    words = {word: TOKENIZER.tokens.index(word) for word in ("the", "cat", "dog", "ran", "[MASK]")}
    ids = [CLS, words["the"], words["[MASK]"], SEP, CLS, words["dog"], words["ran"], SEP]
    one = Examples(
        input_ids=Ragged(np.array(ids, np.uint16), offsets_of([8])),
        masked_lm_positions=Ragged(np.array([2], np.uint16), offsets_of([1])),
        masked_lm_labels=Ragged(np.array([words["cat"]], np.uint16), offsets_of([1])),
        length_a=np.array([8], np.uint16),
        next_sentence_label=np.array([-1], np.int8),
        document_a=np.zeros(1, np.uint64),
        document_b=np.ones(1, np.uint64),
        piece_lengths=Ragged(np.array([4, 4], np.uint16), offsets_of([2])),
        piece_documents=Ragged(np.array([0, 1], np.uint64), offsets_of([2])),
    )
    shown = shown_example(one, 0, TOKENIZER, title="s, row 0", negative_pairs="random")
    assert list(example_lines(shown, width=80)) == [
        "s, row 0: 8 tokens, 2 pieces",
        "  piece 1  the [1 MASK]",
        "  piece 2  dog ran",
        "  masked   1 cat",
    ]
    counted = count_rows(one, TOKENIZER)
    assert (counted["pieces"], counted["unknown"]) == (2, 0)


# ---- what verify finds --------------------------------------------------------------------------


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
    examples, _ = examples_of(documents_of([[[8]], [[9]], [[30]], [[5]], [[3]], [[12]]]), CONFIG)
    assert examples.piece_lengths.lengths[0] == 2
    column = getattr(examples, name)
    values = column.values.copy()
    values[:2] = change(*values[:2].tolist())
    lines = findings_of(replace(examples, **{name: Ragged(values, column.offsets)}), CONFIG)
    assert {line for line in lines if "masks" not in line} == {
        f"{problem}: 1, the first at 0" for problem in expected
    }


def test_shards_without_pieces_do_not_pass_for_packed_ones():
    pairs = replace(CONFIG, pairs="none")
    examples, _ = examples_of(documents_of(TALK), pairs)
    assert findings_of(examples, CONFIG) == [
        "packed rows do not fit --pairs packed, or lack their pieces"
    ]
