"""The built-in sample: reproducible, consistent, varied, and neither trivial nor unlearnable."""

import hashlib
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.sources.sample.articles import make_articles
from clozeline.pipeline.sources.sample.reviews import SIDES, make_reviews
from clozeline.pipeline.sources.sample.source import count_articles
from tests.support.small_jobs import python

ARTICLES_DIGEST = "3e406ce3125ef60a4227bc3d4030e236"
REVIEWS_DIGEST = "25a75daacf359bdef0eed4d97ffb2799"
PRINT_DIGESTS = """
from tests.pipeline.test_sample import digest, review_lines
from clozeline.pipeline.sources.sample.articles import make_articles
print(digest(make_articles(0, 0, 50)), digest(review_lines(0, 0, 50)))
"""


def digest(texts):
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def review_lines(seed, start, stop):
    reviews = make_reviews(seed, start, stop)
    rows = zip(reviews.titles, reviews.contents, reviews.labels.tolist(), strict=True)
    return [f"{label} {title}: {content}" for title, content, label in rows]


@pytest.fixture(scope="module")
def articles():
    return make_articles(1, 0, 5_000)


@pytest.fixture(scope="module")
def reviews():
    return make_reviews(0, 0, 2_000)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**40), start=st.integers(0, 10**7), cut=st.integers(0, 12))
def test_any_split_of_a_range_makes_the_same_articles_and_reviews(seed, start, cut):
    middle, stop = start + cut, start + 12
    halves = make_articles(seed, start, middle) + make_articles(seed, middle, stop)
    assert halves == make_articles(seed, start, stop)
    halves = review_lines(seed, start, middle) + review_lines(seed, middle, stop)
    assert halves == review_lines(seed, start, stop)


def test_a_range_longer_than_a_batch_is_its_articles_one_by_one(articles):
    for number in (0, 2_047, 2_048, 4_999):
        assert articles[number : number + 1] == make_articles(1, number, number + 1)


def test_another_process_makes_the_bytes_that_were_always_made():
    assert python("-c", PRINT_DIGESTS).split() == [ARTICLES_DIGEST, REVIEWS_DIGEST]


def test_another_seed_makes_other_texts():
    assert not set(make_articles(0, 0, 200)) & set(make_articles(1, 0, 200))
    assert not set(review_lines(0, 0, 200)) & set(review_lines(1, 0, 200))


def test_the_fraction_of_turning_reviews_changes_no_other_review():
    none, few, some, all_of_them = (
        make_reviews(0, 0, 1_000, turning=share) for share in (0, 0.05, 0.1, 1)
    )
    assert some.contents == make_reviews(0, 0, 1_000).contents
    assert 0.03 < few.turning.mean() < 0.07
    assert all_of_them.turning.all()
    assert not none.turning.any()
    assert (few.turning <= some.turning).all()
    for row in np.flatnonzero(few.turning == some.turning).tolist():
        assert few.contents[row] == some.contents[row]
    assert few.labels.tolist() == all_of_them.labels.tolist()


def test_no_two_articles_are_alike(articles):
    assert len(set(articles)) == len(articles)
    paragraphs = [p for article in articles for p in article.split("\n") if ". " in p]
    assert len(set(paragraphs)) == len(paragraphs)


@pytest.mark.parametrize("megabytes", [1, 6])
def test_articles_make_the_size_asked_for(articles, megabytes):
    asked = megabytes * 1_000_000
    made = sum(len(article.encode()) for article in articles[: count_articles(asked)])
    assert abs(made - asked) <= 0.05 * asked


TELLINGS = {
    "charter": r"(?:followed in|In|the place in) (\d+)(?:, and with| the \w+ (?:ob|were)|\.)",
    "disaster": r"(?:In|(?:spring|summer|autumn|winter) of) (\d+)(?: a fire| the plague| and ends)",
    "railway": r"(?:arrived in|, opened in|In) (\d+)(?: and ended| and put|, carried| alone)",
}


@pytest.mark.parametrize("fact", TELLINGS)
def test_a_field_that_occurs_twice_is_the_same(articles, fact):
    told = [re.findall(TELLINGS[fact], article) for article in articles]
    assert sum(len(values) >= 2 for values in told) >= 100
    assert all(len(set(values)) <= 1 for values in told)


def test_the_word_for_growth_agrees_with_the_numbers(articles):
    told = r"(\S+) (?:inhabitants|people live[^,]*), (up|down) from (\S+)"
    changes = re.findall(told, "\n".join(articles))
    assert len(changes) >= 300
    for now, way, then in changes:
        grew = int(now.replace(",", "")) > int(then.replace(",", ""))
        assert grew == (way == "up")


def test_no_notation_is_left_in_the_text(articles):
    notation = r"[{}\[\]|*]|  | [,.;]|\.\.|\b[Aa] ([aeio]|18)"
    assert not re.search(notation, "\n".join(articles + review_lines(0, 0, 2_000)))


def overlaps(sentences):
    """Content words shared with the next sentence, and with one of the article after next."""
    follows, random = [], []
    for own, other in zip(sentences, sentences[2:], strict=False):
        for number, (a, b) in enumerate(pairwise(own)):
            follows.append(len(a & b))
            random.append(len(a & other[number % len(other)]))
    return np.array(follows), np.array(random)


@pytest.mark.parametrize("words_at_least", [1, 22], ids=["sentences", "segments"])
def test_word_overlap_alone_cannot_tell_next_sentences(articles, words_at_least):
    """Best threshold: above chance, as in real text, and well short of what a model must reach."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    sentences = []
    for article in articles[:500]:
        bags, words = [], []
        for sentence in re.split(r"(?<=[a-z\d]\.)\s(?=[A-Z])", article):
            words += re.findall(r"\w+", sentence.lower())
            if len(words) >= words_at_least:
                bags.append(set(words) - ENGLISH_STOP_WORDS)
                words = []
        sentences.append(bags)
    follows, random = overlaps(sentences)
    scores = [((follows >= t).mean() + (random < t).mean()) / 2 for t in range(1, 12)]
    assert 0.5 < max(scores) < 0.75


def test_labels_are_balanced_and_not_in_a_pattern():
    labels = make_reviews(0, 0, 5_000).labels
    assert labels.dtype == np.int8
    assert labels.mean() == 0.5
    assert 0.4 < labels[::2].mean() < 0.6


def test_reviews_of_even_and_odd_words_share_no_opinion(reviews):
    """Every opinion of a review is found, as a whole, among the words of its half."""
    opinions = {word for side in SIDES for word in side["adjectives"]}
    found = {}
    for half in ("even", "odd"):
        made = make_reviews(0, 0, 1_000, words=half)
        assert made.labels.tolist() == reviews.labels[:1_000].tolist()
        words = re.findall(r"\w+", " ".join(made.titles + made.contents).lower())
        found[half] = opinions & {*words}
    assert len(found["even"]) == len(found["odd"]) == 40
    assert not found["even"] & found["odd"]


def test_a_bag_of_words_needs_many_plain_reviews_and_guesses_at_turning_ones():
    from clozeline.train.labelled.baseline import fit_bag_of_words

    train = make_reviews(0, 10_000, 11_500)
    plain, turning = (make_reviews(0, 0, 500, turning=share) for share in (0, 1))
    scores = {}
    for size in (200, 1_500):
        labels = train.labels[:size].astype(np.int64)
        predict = fit_bag_of_words(train.contents[:size], labels, source="")
        for name, test in (("plain", plain), ("turning", turning)):
            scores[name, size] = (predict(test.contents) == test.labels).mean()
    assert 0.6 <= scores["plain", 200] <= 0.85
    assert scores["plain", 1_500] >= 0.9
    assert scores["turning", 1_500] <= 0.6


def test_a_reader_of_the_order_knows_the_label_of_turning_reviews():
    """After "but", "although ..." and "still" comes what the writer means, good or bad."""
    sides = {word: side for side in (0, 1) for word in SIDES[side]["adjectives"]}
    reviews = make_reviews(0, 0, 1_500, turning=0.25)
    read = 0
    for content, label in zip(reviews.contents, reviews.labels.tolist(), strict=True):
        for own in re.findall(r"(?:, but |\. Still, |because |In the end )(the [^.?]+)\.", content):
            found = {sides[word] for word in re.findall(r"\w+", own) if word in sides}
            assert found == {label}
            read += 1
    assert read >= 200
