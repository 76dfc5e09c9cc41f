"""Random numbers: pure functions of key and counters, uniform, and frozen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.counter_rng import (
    mix64,
    permutation,
    random_bits,
    stream_key,
    uniform_below,
    with_probability,
)

SEEDS = st.integers(0, 2**63 - 1)


def test_golden_numbers():
    # The first outputs of SplitMix64 from state 0, as its authors' C code prints them.
    assert mix64(np.array([0x9E3779B97F4A7C15], np.uint64))[0] == 0xE220A8397B1DCDAF
    key = stream_key(7, "masks/train", 3, 0)
    assert int(key) == 13021456694372175046
    assert random_bits(key, np.arange(2), 1).tolist() == [12647142142137616924, 1098827742514473261]
    assert permutation(key, 8).tolist() == [0, 4, 3, 1, 6, 7, 2, 5]


@given(SEEDS, st.integers(1, 200), st.integers(0, 200))
def test_a_number_does_not_depend_on_what_else_is_computed(seed, rows, first):
    key = stream_key(seed, "any", 1)
    many = random_bits(key, np.arange(first + rows), np.arange(3)[:, None])
    few = random_bits(key, np.arange(first, first + rows), 2)
    assert (many[2, first:] == few).all()


@given(SEEDS, st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_an_array_of_scopes_gives_one_key_each(seed, shards):
    keys = stream_key(seed, "masks", np.array(shards), 5)
    assert keys.tolist() == [int(stream_key(seed, "masks", shard, 5)) for shard in shards]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "a", 1), (1, "a", 1)),
        ((0, "a", 1), (0, "b", 1)),
        ((0, "a", 1), (0, "a", 2)),
        ((0, "a", 1, 2), (0, "a", 2, 1)),
        ((0, "a"), (0, "a", 0)),
    ],
)
def test_streams_with_different_names_differ(one, other):
    assert stream_key(*one) != stream_key(*other)


def test_rows_and_counters_cannot_be_exchanged():
    bits = random_bits(stream_key(0, "grid"), np.arange(300)[:, None], np.arange(300))
    assert len(np.unique(bits)) == 300 * 300


@given(SEEDS, st.integers(1, 2**32 - 1))
def test_an_integer_is_below_its_limit(seed, limit):
    numbers = uniform_below(random_bits(stream_key(seed, "c"), np.arange(50)), limit)
    assert numbers.min() >= 0
    assert numbers.max() < limit


def test_integers_are_uniform():
    numbers = uniform_below(random_bits(stream_key(0, "u"), np.arange(60_000)), 6)
    counts = np.bincount(numbers)
    # Six cells of 10,000: the standard deviation of one is 91.
    assert (abs(counts - 10_000) < 5 * 91).all()


def test_probabilities_of_zero_one_and_in_between():
    bits = np.append(random_bits(stream_key(0, "p"), np.arange(40_000)), np.uint64(2**64 - 1))
    assert not with_probability(bits, 0.0).any()
    assert with_probability(bits, 1.0).all()
    assert abs(with_probability(bits, 0.3).mean() - 0.3) < 5 * np.sqrt(0.21 / 40_000)


@given(SEEDS, st.integers(0, 300))
def test_a_permutation_contains_every_index_once(seed, size):
    assert sorted(permutation(stream_key(seed, "o"), size)) == list(range(size))


def test_all_orders_are_equally_likely():
    orders = [tuple(permutation(stream_key(seed, "o"), 3)) for seed in range(6000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert (abs(counts - 1000) < 5 * 29).all()
