"""Excluded texts: who shares n words in a row with one of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.counts import SAMPLES, Counts
from clozeline.pipeline.curation.curate import Excluded, curate, text_hash
from clozeline.pipeline.curation.exclusion import exclusion_of, texts_digest
from clozeline.pipeline.curation.rules import quality_of
from tests.test_curation_near import plain_words

TEXTS = st.lists(st.text("ab .", max_size=12), max_size=8)


def grams(text: str, size: int) -> set[tuple[str, ...]]:
    words = plain_words(text)
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_hits_are_those_of_the_definition(excluded, texts, size):
    """Of excluded texts with an n-gram in common, the first one is named."""
    found = exclusion_of(excluded, size)[0].find(texts)
    first = {
        gram: i for i, text in reversed(list(enumerate(excluded))) for gram in grams(text, size)
    }
    expected = [sorted({first[g] for g in grams(text, size) & first.keys()}) for text in texts]
    assert found == expected


def test_texts_that_are_too_short_are_counted():
    exclusion, short = exclusion_of(["one two three", "one two", ""], 3)
    assert short == 2
    assert len(exclusion.grams) == 1


def test_capitals_and_punctuation_do_not_hide_a_text():
    exclusion, _ = exclusion_of(["I would buy this lamp again, for half its price."], 5)
    assert exclusion.find(
        ["They said: 'THIS LAMP -- again for HALF'", "this lamp for half its"]
    ) == [
        [0],
        [],
    ]


def test_many_hashes_are_found_by_the_table_and_the_search():
    texts = [f"word{i} word{i + 1} word{i + 2}" for i in range(5000)]
    exclusion, _ = exclusion_of(texts, 3)
    assert (np.diff(exclusion.grams.astype(object)) > 0).all()
    assert exclusion.find(texts) == [[i] for i in range(5000)]
    assert exclusion.find([f"word{i} word{i} word{i}" for i in range(5000)]) == [[]] * 5000


def test_what_is_dropped_is_counted_and_shown():
    tests = ["the lamp is good and I would buy it again"]
    exclusion, _ = exclusion_of(tests, 5)
    excluded = Excluded(exclusion, [text_hash(tests[0])], [3])
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
