"""Checks of config values: what passes, and what the error says."""

import math
import re
from dataclasses import dataclass
from typing import Literal

import pytest

from clozeline.pipeline.common.config_checks import (
    check_at_least,
    check_between,
    check_choices,
    check_field_names,
    check_fraction,
    check_positive,
    differences,
)
from clozeline.pipeline.common.units import byte_size, token_number


@dataclass(frozen=True)
class Meal:
    dish: Literal["soup", "salad"] = "soup"
    guests: int = 2
    spice: Literal["mild", "hot"] | None = None
    minutes: float | Literal["auto"] = "auto"


@pytest.mark.parametrize(
    ("check", "bounds", "good", "bad", "message"),
    [
        (check_between, (1, 3), (1, 2, 3), (0, 4, math.nan), "it must be 1 to 3"),
        (check_at_least, (1,), (1, 1 << 70), (0, -math.inf), "it must be 1 or more"),
        (check_at_least, (0,), (0, 2.5), (math.nan, math.inf), "it must be 0 or more and finite"),
        (check_positive, (), (1e-9, 3), (0, -1), "it must be more than 0"),
        (check_positive, (), (), (math.nan, math.inf), "it must be more than 0 and finite"),
        (check_fraction, (), (0, 0.999), (1, -0.1, math.nan), "it must be at least 0 and below 1"),
    ],
)
def test_numbers_outside_the_bounds_are_refused(check, bounds, good, bad, message):
    for value in good:
        check("size", value, *bounds)
    for value in bad:
        with pytest.raises(ValueError, match=rf"^size is {value}; {message}"):
            check("size", value, *bounds)


def test_a_choice_must_be_in_the_literal():
    check_choices(Meal("salad"))
    check_choices(Meal(spice="hot", minutes=5))
    for meal, message in [
        (Meal("pie"), "dish is 'pie'; it must be one of soup, salad."),
        (Meal(None), "dish is None; it must be one of soup, salad."),
        (Meal(spice="icy"), "spice is 'icy'; it must be one of mild, hot."),
        (Meal(minutes="long"), "minutes is 'long'; it must be one of auto."),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_choices(meal)


def test_stored_fields_must_be_those_of_the_class():
    check_field_names(Meal, vars(Meal()))
    with pytest.raises(ValueError, match=r"another version of Clozeline: unknown drink$"):
        check_field_names(Meal, {**vars(Meal()), "drink": "tea"})
    with pytest.raises(
        ValueError, match=r"another version of Clozeline: missing dish, guests, minutes, spice$"
    ):
        check_field_names(Meal, {})


# What differs between two configs is said in one way


@pytest.mark.parametrize(
    ("there", "now", "expected"),
    [
        ({"seed": 0}, {"seed": 0}, []),
        ({"seed": 0, "a": 1}, {"seed": 3, "a": 1}, ["seed 0 there, 3 now"]),
        ({"b": "x", "a": 1}, {"a": 2, "b": "y"}, ["a 1 there, 2 now", "b 'x' there, 'y' now"]),
        ({}, {"new": 0.5}, ["new None there, 0.5 now"]),
        ({"old": 1}, {}, []),  # an option that is gone decides nothing
        ({"quality": ("a=1", "b=2")}, {"quality": ()}, ["quality 'a=1', 'b=2' there, none now"]),
        ({"d": "0" * 64}, {"d": "1" * 64}, ["d 000000000000 there, 111111111111 now"]),
    ],
)
def test_each_difference_is_a_phrase_with_both_values(there, now, expected):
    assert differences(there, now) == expected


@pytest.mark.parametrize(("text", "size"), [("4.1MB", 4_100_000), ("1.001K", 1001), ("0.4", 0)])
def test_sizes_are_exact(text, size):
    assert byte_size(text, "size") == size
    if size:
        assert token_number(text.removesuffix("B"), "tokens") == size
