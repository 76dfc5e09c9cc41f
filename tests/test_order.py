"""The order of training: laws of the sequence, and one literal."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.order import POOL_ROWS, Order

DIGEST = "0123456789abcdef" * 4

shard_rows = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)
pool_rows = st.integers(1, 30)
seeds = st.integers(0, 5)


def make(rows, *, seed=0, pool_rows=10, digest=DIGEST):
    return Order(rows, dataset_digest=digest, seed=seed, pool_rows=pool_rows)


def read(order, start, stop):
    """The (epoch, shard, row) of each position, one by one."""
    found = []
    for pool, offsets in order.locate(np.arange(start, stop)):
        rows = [(pool.epoch, s, r) for s in pool.shards for r in range(order.shard_rows[s])]
        found += [rows[row] for row in order.rows(pool)[offsets]]
    return found


@given(shard_rows, pool_rows, seeds, st.integers(0, 3))
def test_every_epoch_reads_each_row_once(rows, pool_rows, seed, epoch):
    order = make(rows, seed=seed, pool_rows=pool_rows)
    n = sum(rows)
    everything = [(epoch, s, r) for s, count in enumerate(rows) for r in range(count)]
    assert sorted(read(order, epoch * n, (epoch + 1) * n)) == everything


@given(shard_rows, pool_rows, st.integers(0, 150), st.integers(0, 60))
def test_any_span_is_found_without_reading_what_is_before_it(rows, pool_rows, start, length):
    whole = read(make(rows, pool_rows=pool_rows), 0, start + length)
    assert read(make(rows, pool_rows=pool_rows), start, start + length) == whole[start:]


@given(shard_rows, pool_rows, st.lists(st.integers(0, 200), max_size=12))
def test_positions_with_gaps_read_the_same_rows(rows, pool_rows, positions):
    order = make(rows, pool_rows=pool_rows)
    positions = np.array(sorted(positions), dtype=np.int64)
    found = [(pool, offset) for pool, offsets in order.locate(positions) for offset in offsets]
    assert [pool.start + offset for pool, offset in found] == positions.tolist()
    assert all(pool == order.pool_at(p) for (pool, _), p in zip(found, positions, strict=True))


@given(shard_rows, pool_rows, st.integers(0, 3))
def test_pools_follow_each_other_and_hold_whole_shards(rows, pool_rows, epoch):
    pools = make(rows, pool_rows=pool_rows).pools(epoch)
    ends = [pool.start + pool.rows for pool in pools]
    assert [pool.start for pool in pools] == [epoch * sum(rows), *ends[:-1]]
    assert [pool.index for pool in pools] == list(range(len(pools)))
    assert sorted(s for pool in pools for s in pool.shards) == list(np.flatnonzero(rows))
    assert all(pool.rows == sum(rows[s] for s in pool.shards) for pool in pools)


@given(shard_rows, pool_rows)
def test_only_the_last_pool_may_be_small_and_then_at_least_half_size(rows, pool_rows):
    *before, last = make(rows, pool_rows=pool_rows).pools(0)
    assert all(pool.rows >= pool_rows for pool in before)
    assert 2 * last.rows >= pool_rows or not before


def test_a_last_pool_under_half_size_joins_the_one_before():
    for epoch in range(20):  # the shard of 4 rows comes first, second or last: never alone
        assert sorted(pool.rows for pool in make([10, 10, 4]).pools(epoch)) == [10, 14]
    assert [10, 10, 5] in [[pool.rows for pool in make([10, 10, 5]).pools(e)] for e in range(20)]


def test_a_pool_has_at_least_65536_rows_by_default():
    order = Order([20_000] * 10, dataset_digest=DIGEST, seed=0)
    assert POOL_ROWS == 65_536
    assert [pool.rows for pool in order.pools(0)] == [80_000, 80_000, 40_000]


@pytest.mark.parametrize("other", [{"seed": 1}, {"digest": "f" * 64}])
def test_seed_and_data_set_both_decide_the_order(other):
    rows = [20, 20, 20]
    assert read(make(rows), 0, 60) == read(make(rows), 0, 60)
    assert read(make(rows), 0, 60) != read(make(rows, **other), 0, 60)


def test_each_epoch_has_an_order_of_its_own():
    order = make([20, 20, 20])
    first, second = read(order, 0, 60), read(order, 60, 120)
    assert [row[1:] for row in first] != [row[1:] for row in second]
    assert first == read(order, 0, 60)  # also after another epoch was read


def test_examples_of_one_shard_are_spread_over_its_pool():
    order = make([500, 500], pool_rows=1000)
    halves = [shard for _, shard, _ in read(order, 0, 500)]
    assert 200 < sum(halves) < 300


def test_without_a_seed_rows_come_as_they_are_stored():
    order = make([2, 0, 3], seed=None)
    assert read(order, 0, 5) == [(0, 0, 0), (0, 0, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2)]


LITERAL = """
import numpy as np
from train.data.order import Order
order = Order([3, 2, 4], dataset_digest="0123456789abcdef" * 4, seed=7, pool_rows=4)
for epoch in (0, 1):
    print([(p.shards, order.rows(p).tolist()) for p in order.pools(epoch)])
"""


def test_the_order_never_changes():
    """If this fails, raise ORDER_VERSION: older checkpoints would continue with other examples."""
    found = subprocess.run([sys.executable, "-c", LITERAL], capture_output=True, text=True)
    assert found.stderr == ""
    assert found.stdout.splitlines() == [
        "[((0, 1), [1, 4, 2, 3, 0]), ((2,), [0, 2, 3, 1])]",
        "[((0, 2), [6, 1, 2, 3, 4, 5, 0]), ((1,), [0, 1])]",
    ]
