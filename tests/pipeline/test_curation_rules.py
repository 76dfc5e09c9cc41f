"""Quality rules, against small texts by hand and against datatrove's verdicts on real text.

The verdicts are kept by the hash of the document and need CLOZELINE_DATA. They are made again in an
environment with `pip install "datatrove[io,processing]" spacy`:

    cd tests/support; python datatrove_verdicts.py $CLOZELINE_DATA > datatrove_verdicts.csv
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.counts import SAMPLES, Counts
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.curation.exclusion import Excluded, curate, grams_of, text_hash
from clozeline.pipeline.curation.rules import (
    BOILERPLATE,
    MEASURES,
    RULES,
    Quality,
    Text,
    quality_of,
    repeated_ngrams,
    top_ngram,
    without_boilerplate,
)
from tests.pipeline.test_curation_near import plain_words
from tests.support.datatrove_verdicts import real_texts, verdicts_of

GOOD = "The river and the hill have names that people of the town know. " * 2


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("words", "It's 3.5 km, 東京!", 5), ("words", "... — !", 0),
        ("mean_word_length", "a bcd", 2.0), ("mean_word_length", "", 0.0),
        ("hash_marks", "# a b", 1 / 3), ("ellipses", "a... b…", 2 / 6),
        ("bullet_lines", "- a\n• b\nc\n\n", 2 / 3), ("ellipsis_lines", "a...\nb\nc… ", 2 / 3),
        ("alphabetic_words", "a 1 , b2", 0.5), ("stop_words", "the cat of the hat", 2),
        ("repeated_lines", "a\nb\na\na", 0.5), ("repeated_line_characters", "aa\nbb\naa", 2 / 8),
        ("repeated_paragraphs", "a\nb\n\na\nb", 0.5),
        ("repeated_paragraph_characters", "a\nb\n\na\nb", 3 / 8),
        ("sentences", "One. Two?\nthree", 3), ("sentences", "一。二！", 2),
        ("lorem_ipsum", "Lorem Ipsum dolor", 1), ("curly_brackets", "if { a } {", 2),
        ("terminal_lines", "a.\nb\nc。\nd!", 0.75), ("short_lines", f"a\n{'b' * 31}", 0.5),
        ("new_lines", "a b\nc d\n", 0.5),
    ],
)  # fmt: skip
def test_measures_of_small_texts(name, text, expected):
    assert MEASURES[name](Text(text)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("size", "text", "top", "repeated"),
    [
        (2, "a b a b c", 6 / 9, 2 / 9), (2, "aa aa aa aa", 15 / 11, 4 / 11),
        (3, "a b c d", 5 / 7, 0.0), (3, "a b", 0.0, 0.0),
    ],
)  # fmt: skip
def test_measures_of_ngrams(size, text, top, repeated):
    assert top_ngram(Text(text), size) == pytest.approx(top)
    assert repeated_ngrams(Text(text), size) == pytest.approx(repeated)


def test_boilerplate_lines_go_and_citations_too():
    text = "It fell in 1873.[2]\nHome | About\nYes.\nWe use cookies on this page.\nIt was late..."
    assert without_boilerplate(text) == "It fell in 1873."
    kept, rule, _ = Quality({BOILERPLATE: 1, "min_sentences": 1}).check(text)
    assert (kept, rule) == ("It fell in 1873.", "")


def test_the_first_broken_rule_is_the_reason_and_its_value_is_told():
    few = ("min_alphabetic_words", 2 / 3)
    assert quality_of(["gopher"]).check("Too short.")[1:] == ("min_words", 2.0)
    gopher = quality_of(["gopher"]).thresholds
    assert Quality({**gopher, "min_words": 2}).check("Too short.")[1:] == few
    assert Quality({**gopher, "min_words": 5}).check(GOOD)[1] == "max_top_3gram"
    assert quality_of(["none"]).check("") == ("", "", 0.0)
    assert quality_of([]) == quality_of(["none"]) == quality_of(["gopher", "none"])


def test_of_several_sets_the_later_threshold_holds_and_rules_keep_their_order():
    name = "max_repeated_line_characters"
    both = [quality_of(sets).thresholds for sets in (["gopher", "fineweb"], ["fineweb", "gopher"])]
    assert [thresholds[name] for thresholds in both] == [0.01, 0.2]
    assert list(both[0]) == list(both[1]) == [rule for rule in RULES if rule in both[0]]


def test_a_threshold_itself_is_allowed():
    assert Quality({"min_words": 2, "max_words": 2}).check("Too short.")[1] == ""
    assert Quality({"min_words": 3}).check("Too short.")[1] == "min_words"
    assert Quality({"max_words": 1}).check("Too short.")[1] == "max_words"


@pytest.mark.parametrize("run", [".", "?!", '."', "…)"])
def test_sentences_of_a_line_of_marks_are_counted_in_linear_time(run):
    """As of the dots of a table of contents; in quadratic time it would be half an hour."""
    assert MEASURES["sentences"](Text(run * 150_000 + "x")) == 1


@pytest.mark.parametrize("name", [rule for rule in RULES if rule != "min_words"])
def test_a_rule_with_a_threshold_that_nothing_passes_drops_a_text(name):
    text = "- lorem ipsum { # ...\n\n" * 12 + "no mark"
    threshold = 0 if name.startswith("max_") else 1e9
    assert Quality({name: threshold}).check(text)[1] == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gophr", "there is no such set; did you mean gopher?"),
        ("min_words=3", "there is no such set. Sets are none, gopher, c4, fineweb; single rules"),
    ],
)
def test_a_wrong_set_is_one_line(given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        quality_of([given])


@pytest.fixture(scope="module")
def texts():
    """Real ones, by hash."""
    if "CLOZELINE_DATA" not in os.environ:
        pytest.skip("needs CLOZELINE_DATA")
    return {text_hash(text): text for text in real_texts(Path(os.environ["CLOZELINE_DATA"]))}


@pytest.mark.parametrize(
    ("filter_name", "least"), [("gopher", 0.97), ("c4", 0.985), ("fineweb", 0.995)]
)
def test_verdicts_agree_with_datatrove_on_real_text(filter_name, least, texts):
    """Its words are spaCy's and its sentences Punkt's: at a threshold, a few differ."""
    verdicts, quality = verdicts_of(filter_name), quality_of([filter_name])
    found = {document: bool(quality.check(text)[1]) for document, text in texts.items()}
    agree = [found[document] == bool(reason) for document, reason in verdicts.items()]
    assert len(agree) == len(found)
    assert 0.02 < sum(found.values()) / len(found) < 0.98  # neither side keeps everything
    assert sum(agree) / len(agree) >= least


# --- Excluded texts: who shares n words in a row with one of them ---------------------------------
TEXTS = st.lists(st.text("aAb .", max_size=12), max_size=8)


def grams(text, size):
    words = plain_words(text)
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def excluded_of(texts, size):
    return Excluded(size, grams_of(texts, size))


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_hits_are_those_of_the_definition(excluded, texts, size):
    found = excluded_of(excluded, size).count_shared(texts).tolist()
    of = set().union(*(grams(text, size) for text in excluded))
    assert list(map(bool, found)) == [bool(of & grams(text, size)) for text in texts]


def test_many_hashes_are_found_by_the_table_and_the_search():
    texts = [f"word{i} word{i + 1} word{i + 2}" for i in range(5000)]
    excluded = excluded_of(texts, 3)
    assert (np.diff(excluded.grams.astype(object)) > 0).all()
    assert excluded.count_shared(texts).tolist() == [1] * 5000
    others = [f"word{i} word{i} word{i}" for i in range(5000)]
    assert not excluded.count_shared(others).any()


def test_what_is_dropped_is_counted_once_for_each_text_and_shown():
    test = "the lamp is good and I would buy it again"
    excluded = excluded_of([test, test], 5)
    texts = ["too short", "indeed the lamp is good and cheap", "the lamp broke on the first day"]
    kept, counts = curate(texts, Quality({"min_words": 3}), excluded)
    assert kept == texts[2:]
    assert counts.dropped == {"quality_min_words": 1, "excluded": 1}
    [sample] = counts.samples["quality_min_words"]
    assert sample == {"document": text_hash(texts[0]), "text": texts[0], "value": 2.0}
    assert counts.samples["excluded"][0]["value"] == 1


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
