"""Near copies: containment of word 5-grams, against a plain definition."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.train.labelled import duplicates
from clozeline.train.labelled.duplicates import near_duplicates

TEXTS = st.lists(st.text("ab, .", max_size=30), min_size=1, max_size=8)


def plain(text: str) -> set[tuple[str, ...]]:
    words = re.sub(r"[^a-z0-9]+", " ", text.lower()).split()
    return {tuple(words[i : i + 5]) for i in range(max(len(words) - 4, 1))} if words else set()


def is_copy(test: str, train: list[str]) -> bool:
    own = plain(test)
    return bool(own) and any(len(own & plain(text)) >= 0.8 * len(own) for text in train)


@given(TEXTS, TEXTS)
def test_near_copies_are_those_of_the_definition(test: list[str], train: list[str]) -> None:
    assert near_duplicates(test, train).tolist() == [is_copy(text, train) for text in test]


@pytest.mark.parametrize(
    ("test", "train", "expected"),
    [
        ("Good lamp, I would buy it again!", "good lamp I would buy it again ann", True),
        ("good lamp I would buy it again", "good lamp I would buy it", False),  # 2 of 3
        ("one two three four five six seven eight nine",  # 4 of 5
         "zero one two three four five six seven eight", True),
        ("good lamp", "Good lamp.", True),
        ("good lamp", "a good lamp", False),
        ("", "", False),
        ("Ça va très bien, merci", "ça va très bien merci", True),
        ("这是一盏很好的灯", "这是一盏很好的灯!", True),  # a character is a word
        ("这是一盏很好的灯", "我买了一把椅子", False),
        ("good\0lamp", "good lamp", True),
    ],
)  # fmt: skip
def test_examples(test: str, train: str, expected: bool) -> None:
    assert near_duplicates([test], ["other", train]).tolist() == [expected]


def test_one_training_row_must_have_the_shingles_not_all_together() -> None:
    words = [f"w{i}" for i in range(12)]
    halves = [" ".join(words[:8]), " ".join(words[4:])]
    assert near_duplicates([" ".join(words)], halves).tolist() == [False]


@pytest.mark.parametrize("limit", ["CHUNK", "MOST_PAIRS"])
def test_chunks_of_rows_change_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["a", "b", "c"], 9)) for _ in range(300)]
    whole = near_duplicates(texts[:100], texts[100:])
    assert 0 < whole.sum() < 100
    monkeypatch.setattr(duplicates, limit, 7)
    assert near_duplicates(texts[:100], texts[100:]).tolist() == whole.tolist()


def test_texts_that_occur_often_are_compared_once():
    """25,000 times 5,000 pairs of equal rows would take gigabytes."""
    test, train = ["n/a", "a lamp of its own"] * 5_000, ["n/a", "another"] * 25_000
    assert near_duplicates(test, train).tolist() == [True, False] * 5_000
