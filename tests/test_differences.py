"""What differs between two configs is said in one way."""

import pytest

from clozeline.pipeline.common.differences import differences


@pytest.mark.parametrize(
    ("there", "now", "expected"),
    [
        ({"seed": 0}, {"seed": 0}, []),
        ({"seed": 0, "a": 1}, {"seed": 3, "a": 1}, ["seed 0 there, 3 now"]),
        ({"b": "x", "a": 1}, {"a": 2, "b": "y"}, ["a 1 there, 2 now", "b 'x' there, 'y' now"]),
        ({}, {"new": 0.5}, ["new None there, 0.5 now"]),
        ({"old": 1}, {}, []),  # an option that is gone decides nothing
        ({"d": "0" * 64}, {"d": "1" * 64}, ["d 000000000000 there, 111111111111 now"]),
    ],
)
def test_each_difference_is_a_phrase_with_both_values(there, now, expected):
    assert differences(there, now) == expected
