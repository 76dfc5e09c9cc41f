"""Placements: what the pipeline makes has its place in the text; what is planted has none."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import DataConfig
from pipeline.verify import span_checks as placements
from pipeline.verify.findings import Findings
from pipeline.verify.span_checks import check_spans
from tests.support.small import make_documents, make_examples
from tests.test_examples import DOCUMENT, TALK, WORDS, documents_of, examples_of, lists

CONFIG = DataConfig(max_seq_length=24, num_shards=1)
CLS, SEP = 2, 3


def faults_of(examples, documents, config=CONFIG):
    """The lines about rows that name documents by their hashes."""
    faults = Findings()
    check_spans(
        examples,
        documents,
        rows=np.arange(len(examples)),
        documents_a=np.searchsorted(documents.hashes, examples.document_a),
        documents_b=np.searchsorted(documents.hashes, examples.document_b),
        config=config,
        faults=faults,
    )
    return faults.lines()


def row_of(a, b, *, label=0, document=0):
    """One unmasked row of a pair; b None: no pair."""
    ids = [CLS, *a, SEP] if b is None else [CLS, *a, SEP, *b, SEP]
    hashes = np.array([document * 1000], dtype=np.uint64)
    return make_examples([ids], length_a=[len(a) + 2], labels=[label], documents=hashes)


def text_of(shape):
    """A bucket whose ids count up from 100: a stretch tells where it comes from."""
    documents = make_documents(shape)
    return replace(documents, ids=(documents.ids + 100).astype(np.uint16))


@settings(max_examples=150)
@given(
    st.lists(DOCUMENT, max_size=6),
    st.sampled_from(["segments", "order", "sentences", "none"]),
    st.integers(8, 40),
    st.integers(0, 1000),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_whatever_is_made_has_its_place(shape, kind, length, seed, words, short):
    """Of few words everything stands at many places; still one of them fits."""
    config = replace(CONFIG, pairs=kind, max_seq_length=length, seed=seed, short_seq_prob=short)
    documents = make_documents(shape)
    ids = WORDS[(documents.ids * 7 + documents.ids // 5) % words]
    documents = replace(documents, ids=ids)
    examples, _ = examples_of(documents, config)
    assert faults_of(examples, documents, config) == []


@settings(max_examples=60)
@given(
    st.lists(DOCUMENT, min_size=2, max_size=6),
    st.sampled_from(["segments", "order", "sentences", "none"]),
    st.data(),
)
def test_a_stretch_is_missed_exactly_where_a_plain_search_misses_it(shape, kind, data):
    config = replace(CONFIG, pairs=kind)
    documents = make_documents(shape)
    documents = replace(documents, ids=WORDS[documents.ids % 3])
    examples, _ = examples_of(documents, config)
    if not len(examples):
        return
    row = data.draw(st.integers(0, len(examples) - 1))
    place = data.draw(st.integers(1, int(examples.length_a[row]) - 2))
    originals = examples.unmasked()
    originals.input_ids.values[originals.input_ids.offsets[row] + place] = WORDS[
        data.draw(st.integers(0, 2))
    ]
    a = lists(originals.input_ids)[row][1 : int(examples.length_a[row]) - 1]
    number = int(np.searchsorted(documents.hashes, examples.document_a[row]))
    edges = documents.sentence_offsets[documents.document_offsets[number : number + 2]]
    text = documents.ids[slice(*edges)].tolist()
    stands = any(text[i : i + len(a)] == a for i in range(len(text)))
    lines = faults_of(originals, documents, config)
    missed = f"rows whose A is no stretch of its document: 1, the first at {row}"
    assert (missed in lines) == (not stands)


def test_small_chunks_of_documents_say_the_same(monkeypatch):
    documents = documents_of(TALK)
    examples, _ = examples_of(documents)
    spoiled = examples.unmasked()
    spoiled.input_ids.values[spoiled.input_ids.offsets[[3, 9, 20]] + 1] = 5
    lines = faults_of(spoiled, documents)
    assert lines == ["rows whose A is no stretch of its document: 3, the first at 3"]
    monkeypatch.setattr(placements, "CHUNK_TOKENS", 20)
    assert faults_of(examples, documents) == []
    assert faults_of(spoiled, documents) == lines


# A document of 100..104 | 105..109 | 110..129, 130..149 | 150..154 (sentences, one paragraph),
# and one of 155..159 | 160..163.
SHAPE = [[[5, 5, 20, 20, 5]], [[5, 4]]]


def span(start, stop):
    return list(range(start, stop))


NOT_IN_ORDER = "rows whose A and B are not consecutive in the order of their label"


@pytest.mark.parametrize(
    ("kind", "a", "b", "label", "expected"),
    [
        # whole sentences, side by side
        ("segments", span(100, 105), span(105, 110), 0, None),
        # not cut: A and B end and begin where sentences do
        ("segments", span(100, 104), span(105, 110), 0, "rows cut against the rules"),
        ("segments", span(101, 105), span(105, 110), 0, "rows cut against the rules"),
        ("segments", span(100, 105), span(105, 109), 0, "rows cut against the rules"),
        ("segments", span(100, 105), span(106, 110), 0, "rows cut against the rules"),
        # B is in the document, though not behind A
        ("segments", span(105, 110), span(100, 105), 0, "rows whose B does not follow A"),
        ("segments", span(100, 105), span(150, 155), 0, "rows whose B does not follow A"),
        # cut to the full length: 11 and 10 tokens at least
        ("segments", span(114, 125), span(135, 145), 0, None),
        ("segments", span(118, 129), span(131, 141), 0, None),
        ("segments", span(105, 110), span(110, 126), 0, None),
        ("segments", span(105, 110), span(113, 129), 0, None),
        # the longer part gives way first
        ("segments", span(106, 110), span(110, 127), 0, "rows cut against the rules"),
        ("segments", span(110, 122), span(130, 139), 0, "rows cut against the rules"),
        # long enough to be cut, in a row that has room
        ("segments", span(111, 124), span(155, 160), 1, "rows cut against the rules"),
        # both were cut, but there is no end of a sentence between them
        ("segments", span(110, 121), span(121, 131), 0, "rows whose B does not follow A"),
        # cut, and too far away: sentences that nobody packs together
        ("segments", span(100, 105), span(132, 148), 0, "rows whose B does not follow A"),
        # a random B is packed to what A leaves, no further
        ("segments", span(100, 105), span(155, 160), 1, None),
        ("segments", span(110, 130), span(155, 164), 1, "rows cut against the rules"),
        # consecutive segments in order, or swapped where the label is 1
        ("order", span(100, 105), span(105, 110), 0, None),
        ("order", span(105, 110), span(100, 105), 1, None),
        ("order", span(105, 110), span(100, 105), 0, NOT_IN_ORDER),
        ("order", span(100, 105), span(105, 110), 1, NOT_IN_ORDER),
        ("order", span(150, 155), span(100, 105), 1, NOT_IN_ORDER),
        # two sentences at least, however long: cut to 11 tokens of A and 10 of B
        ("order", span(114, 125), span(135, 145), 0, None),
        ("order", span(135, 146), span(114, 124), 1, None),
        ("order", span(106, 110), span(100, 105), 1, "rows cut against the rules"),
        # more sentences than reach the length
        ("order", span(105, 126), span(100, 105), 1, "rows cut against the rules"),
        ("sentences", span(100, 105), span(105, 110), 0, None),
        ("sentences", span(100, 110), span(110, 120), 0, "rows cut against the rules"),
        ("sentences", span(100, 105), span(110, 126), 0, "rows whose B does not follow A"),
        # the end of A and the start of B
        ("sentences", span(119, 130), span(130, 140), 0, None),
        ("sentences", span(118, 129), span(130, 140), 0, "rows cut against the rules"),
        ("sentences", span(119, 130), span(131, 141), 0, "rows cut against the rules"),
        ("sentences", span(105, 110), span(110, 126), 0, None),
        # a last sentence has no next one, and makes no pair
        ("sentences", span(100, 105), span(160, 164), 1, None),
        ("sentences", span(150, 155), span(160, 164), 1, "rows cut against the rules"),
        ("none", span(100, 122), None, -1, None),
        ("none", span(122, 144), None, -1, None),
        ("none", span(144, 155), None, -1, None),
        ("none", span(123, 145), None, -1, "rows cut against the rules"),
        ("none", span(122, 143), None, -1, "rows cut against the rules"),
        ("none", span(100, 105), None, -1, "rows cut against the rules"),
        ("none", span(144, 156), None, -1, "rows whose A is no stretch of its document"),
    ],
)
def test_where_a_pair_may_begin_and_end(kind, a, b, label, expected):
    documents = text_of(SHAPE)
    row = row_of(a, b, label=label)
    if label == 1 and kind != "order":
        row = replace(row, document_b=np.array([1000], dtype=np.uint64))
    lines = [] if expected is None else [f"{expected}: 1, the first at 0"]
    assert faults_of(row, documents, replace(CONFIG, pairs=kind)) == lines


def test_a_stretch_over_the_end_of_its_document_is_none():
    documents = text_of([[[5]], [[5]]])
    assert faults_of(row_of(span(103, 107), span(107, 108)), documents) == [
        "rows whose A is no stretch of its document: 1, the first at 0",
        "rows whose B is no stretch of its document: 1, the first at 0",
    ]


def test_of_two_places_the_one_that_b_follows_is_found():
    """The same sentence twice; only behind the second one stands B."""
    documents = text_of([[[3, 4, 3, 5]]])
    ids = documents.ids.copy()
    ids[7:10] = ids[:3]
    documents = replace(documents, ids=ids)
    assert faults_of(row_of(span(100, 103), span(110, 115)), documents) == []
    [line] = faults_of(row_of(span(103, 107), span(110, 115)), documents)
    assert line == "rows whose B does not follow A: 1, the first at 0"
