"""Excluded texts: who shares n words in a row with one of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.counts import SAMPLES, Counts
from clozeline.pipeline.curation import exclusion
from clozeline.pipeline.curation.curate import curate, text_hash
from clozeline.pipeline.curation.exclusion import Excluded, grams_of, texts_digest
from clozeline.pipeline.curation.rules import quality_of
from tests.pipeline.test_curation_near import plain_words

TEXTS = st.lists(st.text("aAb .", max_size=12), max_size=8)


def grams(text: str, size: int) -> set[tuple[str, ...]]:
    words = plain_words(text)
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def excluded_of(texts: list[str], size: int, source: int = 0) -> Excluded:
    hashes = [text_hash(text) for text in texts]
    return Excluded(size, *grams_of(texts, size), hashes, [source] * len(texts))


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_hits_are_those_of_the_definition(excluded, texts, size):
    """All excluded texts with an n-gram in common are named."""
    found = excluded_of(excluded, size).find(texts)
    of = [grams(text, size) for text in excluded]
    expected = [[i for i, own in enumerate(of) if own & grams(text, size)] for text in texts]
    assert found == expected


def test_many_hashes_are_found_by_the_table_and_the_search():
    texts = [f"word{i} word{i + 1} word{i + 2}" for i in range(5000)]
    excluded = excluded_of(texts, 3)
    assert (np.diff(excluded.grams.astype(object)) > 0).all()
    assert excluded.find(texts) == [[i] for i in range(5000)]
    assert excluded.find([f"word{i} word{i} word{i}" for i in range(5000)]) == [[]] * 5000


def test_words_that_very_many_texts_share_are_those_of_the_first(monkeypatch):
    monkeypatch.setattr(exclusion, "MOST_TEXTS", 3)
    grams, rows = grams_of(["a b c d", "a b", *["x a b c"] * 4, "b c d"], 2)
    found = {}
    for gram, row in zip(grams.tolist(), rows.tolist(), strict=True):
        found.setdefault(gram, []).append(row)
    assert sorted(found.values()) == [[0, 1, 2], [0, 2, 3], [0, 6], [2, 3, 4]]


def test_a_document_counts_once_for_a_text_that_is_there_twice():
    text = "the lamp is good"
    _, counts = curate([text], quality_of([]), excluded_of([text, text], 3))
    assert counts.hits == {"0:": 1, f"0:{text_hash(text)}": 1}


def test_what_is_dropped_is_counted_and_shown():
    tests = ["the lamp is good and I would buy it again"]
    excluded = excluded_of(tests, 5, source=3)
    texts = ["too short", "indeed the lamp is good and cheap", "the lamp broke on the first day"]
    kept, counts = curate(texts, quality_of(["min_words=3"]), excluded)
    assert kept == texts[2:]
    assert counts.dropped == {"quality_min_words": 1, "excluded": 1}
    assert counts.hits == {"3:": 1, f"3:{text_hash(tests[0])}": 1}
    [sample] = counts.samples["quality_min_words"]
    assert sample == {"document": text_hash(texts[0]), "text": texts[0], "value": 2.0}
    assert counts.samples["excluded"][0]["kept"] == text_hash(tests[0])


@given(st.lists(st.lists(st.integers(0, 99), max_size=40), min_size=1, max_size=4))
def test_samples_are_those_of_the_lowest_hashes_in_whatever_parts_they_come(parts):
    every = Counts()
    for part in parts:
        counts = Counts()
        for number in part:
            counts.show("rule", document=f"{number:02}", text="")
        every.add(Counts.from_json(counts.to_json()))
    lowest = sorted({f"{number:02}" for part in parts for number in part})[:SAMPLES]
    assert [sample["document"] for sample in every.samples.get("rule", [])] == lowest


def test_the_digest_of_a_set_of_texts_does_not_depend_on_their_order():
    hashes = [text_hash(text) for text in ("a", "b", "c")]
    assert texts_digest(hashes) == texts_digest(hashes[::-1])
    assert texts_digest(hashes) != texts_digest(hashes[:2])
