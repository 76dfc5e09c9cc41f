"""Stretches: found where a plain search finds them, token by token, and nowhere else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.verify.span_index import WIDEST, SpanIndex, Spans, gram_widths

TEXT = [5, 6, 7, 8, 5, 9, 1, 5, 2, 7, 1]


def finder_of(text, wanted, *, anchors=(), free_width=1):
    ids = np.array([token for stretch in wanted for token in stretch], dtype=np.uint16)
    lengths = np.array([len(stretch) for stretch in wanted])
    stretches = Spans(ids, np.cumsum(lengths) - lengths, lengths)
    places = np.array(anchors, dtype=np.int64)
    text = np.array(text, dtype=np.uint16)
    return SpanIndex(text, stretches, anchors=places, free_width=free_width)


def first(finder, which, low, high, holds=lambda _, place: place >= 0):
    arrays = [np.array(values, dtype=np.int64) for values in (which, low, high)]
    return finder.first(*arrays, holds).tolist()


def plain_search(text, stretch, low, high):
    for place in range(low, min(high, len(text) - len(stretch) + 1)):
        if text[place : place + len(stretch)] == stretch:
            return place
    return -1


def test_the_first_place_in_a_range_at_which_a_test_holds():
    finder = finder_of(TEXT, [[5], [7, 1], [9]])
    assert first(finder, [0, 1, 2], [0, 0, 0], [11, 11, 11]) == [0, 9, 5]
    assert first(finder, [0, 0, 0], [1, 5, 8], [11, 11, 11]) == [4, 7, -1]
    assert first(finder, [0, 2], [0, 0], [0, 5]) == [-1, -1]
    assert first(finder, [0, 0], [0, 0], [11, 11], lambda at, place: place > 3 + at) == [4, 7]


def test_narrow_grams_are_looked_for_at_the_anchors_alone():
    finder = finder_of(TEXT, [[5], [7, 1], [5, 2]], anchors=[4, 9], free_width=2)
    assert first(finder, [0, 1, 2], [0, 0, 0], [11, 11, 11]) == [4, 9, 7]
    finder = finder_of(TEXT, [[5], [7, 1], [5, 2]], anchors=[4, 9], free_width=WIDEST + 1)
    assert first(finder, [0, 1, 2], [0, 0, 0], [11, 11, 11]) == [4, 9, -1]


def test_a_gram_is_the_widest_power_of_two_in_a_stretch():
    lengths = np.array([1, 2, 3, 4, 7, 8, 15, 16, 17, 500])
    assert gram_widths(lengths).tolist() == [1, 2, 2, 4, 4, 8, 8, 16, 16, 16]


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=6),
    st.integers(-3, 70),
    st.integers(-3, 70),
    st.data(),
)
def test_places_are_those_of_a_plain_search(text, wanted, low, high, data):
    if text:  # most random stretches stand nowhere; this one does
        start = data.draw(st.integers(0, len(text) - 1))
        wanted.append(text[start : start + data.draw(st.integers(1, 40))])
    found = first(
        finder_of(text, wanted), range(len(wanted)), [low] * len(wanted), [high] * len(wanted)
    )
    assert found == [plain_search(text, stretch, max(low, 0), high) for stretch in wanted]


def test_a_stretch_that_goes_on_otherwise_than_its_gram_is_not_found():
    text = [*range(10, 40), *range(10, 26), 99]
    assert first(
        finder_of(text, [[*range(10, 26), 99], [*range(10, 26), 98]]), [0, 1], [0, 0], [99, 99]
    ) == [30, -1]
