"""Examples: pairs, or pieces of documents, between special tokens, masked, without losses."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.counter_rng import stream_key
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig, PairScheme
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.schema import NO_PAIR, example_schema
from clozeline.pipeline.dataset.shards import read_shard, rows_sha256, write_shard
from clozeline.pipeline.examples.columns import best_fit, pack_documents
from clozeline.pipeline.examples.examples import SLAB, make_examples
from clozeline.pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from clozeline.pipeline.examples.pairs import SCHEMES
from clozeline.pipeline.report.dataset_chapter import count_rows
from clozeline.pipeline.report.inspect import example_lines, inspect_dataset, shown_example
from tests.pipeline.test_inspect import example
from tests.pipeline.test_pairs import SHAPE, tokens_of_documents
from tests.pipeline.test_steps import CONFIG as JOB
from tests.pipeline.test_steps import build, work
from tests.support.small import lists, make_documents, small_tokenizer

TOKENIZER = small_tokenizer()
CLS, SEP, UNK = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.unk_id
WORDS = TOKENIZER.replacement_ids.astype(np.uint16)
CONFIG = DataConfig(max_seq_length=24, num_shards=1)
TALK = [[[3, 5, 4], [6, 2, 7, 5]], [[9]], [[4, 4], [12, 3, 5]], [[8, 8, 2, 3, 4]]] * 5

DOCUMENT = st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=5), min_size=1, max_size=3)


def documents_of(shape):
    """A bucket whose ids are words of the small vocabulary, no two neighbours alike."""
    documents = make_documents(shape)
    return replace(documents, ids=WORDS[documents.ids % len(WORDS)])


def examples_of(documents, config=CONFIG, *, split="train", shard=0):
    return make_examples(documents, split=split, shard=shard, config=config, tokenizer=TOKENIZER)


@settings(max_examples=40)
@given(
    st.lists(DOCUMENT, max_size=6),
    st.sampled_from(["segments", "order", "sentences", "none"]),
    st.integers(0, 1000),
    st.integers(1, 3),
)
def test_unmasked_rows_are_the_spans_of_the_pairs_between_special_tokens(shape, kind, seed, copies):
    config = replace(CONFIG, pairs=kind, seed=seed, dupe_factor=copies)
    documents = documents_of(shape)
    rows, length_a, labels, hashes = [], [], [], []
    for copy in range(copies):
        key = stream_key(seed, "pairs/train", 0, copy)
        pairs, _ = SCHEMES[kind](documents, key, 24, config.short_seq_prob)
        for i in range(len(pairs)):
            a = documents.ids[pairs.a_start[i] : pairs.a_stop[i]].tolist()
            b = documents.ids[pairs.b_start[i] : pairs.b_stop[i]].tolist()
            rows.append([CLS, *a, SEP] if kind == "none" else [CLS, *a, SEP, *b, SEP])
            length_a.append(len(a) + 2)
            labels.append(pairs.next_sentence_label[i])
            hashes.append(documents.hashes[[pairs.document_a[i], pairs.document_b[i]]].tolist())
    examples, _ = examples_of(documents, config)
    assert lists(examples.unmasked().input_ids) == rows
    assert examples.length_a.tolist() == length_a
    assert examples.next_sentence_label.tolist() == labels
    assert list(map(list, zip(examples.document_a, examples.document_b, strict=True))) == hashes
    assert all(len(row) <= 24 for row in rows)


def test_a_shard_of_many_slabs_equals_its_slabs():
    spans = replace(CONFIG, pairs="none", max_seq_length=8)
    documents = documents_of([[[6]]] * (SLAB + 5))
    examples, _ = examples_of(documents, spans)
    assert len(examples) == SLAB + 5
    whole = examples.unmasked().input_ids.values.reshape(-1, 8)
    assert (whole[:, 1:7].ravel() == documents.ids).all()
    key = np.broadcast_to(mask_keys(0, split="train", shard=0, epoch=0), 5)
    last = examples.take(np.arange(SLAB, SLAB + 5))
    rules = MaskRules.of(spans, TOKENIZER)
    again = mask_examples(last.unmasked(), keys=key, rows=SLAB + np.arange(5), rules=rules)
    assert rows_sha256(again) == rows_sha256(last)


def test_copies_of_the_text_have_different_pairs_and_masks():
    documents = documents_of(TALK)
    once, _ = examples_of(documents)
    twice, _ = examples_of(documents, replace(CONFIG, dupe_factor=2))
    first = twice.take(np.arange(len(once)))
    second = twice.take(np.arange(len(once), len(twice)))
    assert rows_sha256(first) == rows_sha256(once)
    assert lists(second.unmasked().input_ids) != lists(first.unmasked().input_ids)

    spans, _ = examples_of(documents, replace(CONFIG, dupe_factor=2, pairs="none"))
    half = len(spans) // 2
    first, second = spans.take(np.arange(half)), spans.take(np.arange(half, 2 * half))
    assert lists(second.unmasked().input_ids) == lists(first.unmasked().input_ids)
    assert lists(second.input_ids) != lists(first.input_ids)


@pytest.mark.parametrize("change", [{"split": "validation"}, {"shard": 1}])
def test_each_shard_has_its_own_random_stream(change):
    one, _ = examples_of(documents_of(TALK))
    other, _ = examples_of(documents_of(TALK), **change)
    assert lists(one.unmasked().input_ids) != lists(other.unmasked().input_ids)


def test_rows_of_unknown_words_are_dropped_and_counted():
    documents = documents_of([[[4]], [[3]], [[5]]])
    ids = documents.ids.copy()
    ids[4:7] = UNK  # all of the second document
    ids[8] = UNK  # not all of the third
    documents = replace(documents, ids=ids)
    examples, dropped = examples_of(documents, replace(CONFIG, pairs="none"))
    assert dropped["nothing_to_mask"] == 1
    assert examples.document_a.tolist() == [0, 2000]
    assert lists(examples.unmasked().input_ids)[1] == [CLS, *ids[7:12].tolist(), SEP]


def test_dropped_pairs_are_counted_once_per_copy():
    documents = documents_of([[[30]], [[2, 30, 4]]])
    of_copies = []
    for copy in (0, 1):
        key = stream_key(CONFIG.seed, "pairs/train", 0, copy)
        _, cut = SCHEMES[CONFIG.pairs](documents, key, 24, CONFIG.short_seq_prob)
        of_copies.append(cut["cut_tokens"])
    assert min(of_copies) > 0
    for copies in (1, 2):
        _, dropped = examples_of(documents, replace(CONFIG, dupe_factor=copies))
        assert dropped["cut_tokens"] == sum(of_copies[:copies])


@pytest.mark.parametrize("kind", get_args(PairScheme))
def test_an_empty_bucket_gives_an_empty_shard_of_the_right_types(kind):
    documents = replace(make_documents([]), ids=WORDS[:0])
    examples, dropped = examples_of(documents, replace(CONFIG, pairs=kind))
    full, _ = examples_of(documents_of(TALK), replace(CONFIG, pairs=kind))
    assert len(examples) == 0
    assert not dropped.total()
    for name, wanted in full.columns().items():
        found = getattr(examples, name)
        assert getattr(found, "values", found).dtype == getattr(wanted, "values", wanted).dtype


# --- Packed rows: every token once, whole documents where they fit, rows as full as best fit ------


PACKED = DataConfig(max_seq_length=24, num_shards=1, pairs="packed")
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
    examples, dropped = examples_of(documents, PACKED)
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
    examples, _ = examples_of(documents_of(TALK), PACKED)
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


def test_a_packed_row_is_shown_piece_by_piece():
    text = "[CLS] the [MASK] [SEP] [CLS] dog ran [SEP]"
    one = replace(
        example(text, hidden={2: "cat"}, length_a=8, label=-1),
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
