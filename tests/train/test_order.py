"""The order of training and what each rank gets of it: laws, and literals that never change."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.train.data import order as order_module
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import (
    POOL_ROWS,
    STREAMS,
    Order,
    RankSlice,
    deal,
    pool_rows_for,
    streams_for,
)
from tests.support.small_data import SMALL, write_data_set
from tests.train.test_loader import GLOBAL, ORDER, counts, digest_of, of_ranks

DIGEST = "0123456789abcdef" * 4

shard_rows = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)
pool_rows = st.integers(1, 30)
seeds = st.integers(0, 5)
#: 16 streams are more than most of these data sets have rows.
kinds = st.sampled_from([{"streams": c} for c in (1, 2, 3, 4, 16)])


def make(rows, *, seed=0, pool_rows=10, digest=DIGEST, **kind):
    return Order(rows, dataset_digest=digest, seed=seed, pool_rows=pool_rows, **kind)


def read(order, start, stop):
    """The (epoch, shard, row) of each position."""
    return read_at(order, np.arange(start, stop))


def read_at(order, positions):
    return list(zip(*(column.tolist() for column in order.locate(positions)), strict=True))


def pools(order, epoch):
    """The pools of an epoch, one after the other."""
    found = [order.pool_at(epoch * order.epoch_rows)]
    while found[-1].stop < (epoch + 1) * order.epoch_rows:
        found.append(order.pool_at(found[-1].stop))
    return found


@given(shard_rows, pool_rows, seeds, st.integers(0, 3), kinds)
def test_every_epoch_reads_each_row_once(rows, pool_rows, seed, epoch, kind):
    order = make(rows, seed=seed, pool_rows=pool_rows, **kind)
    n = sum(rows)
    everything = [(epoch, s, r) for s, count in enumerate(rows) for r in range(count)]
    assert sorted(read(order, epoch * n, (epoch + 1) * n)) == everything


@settings(max_examples=30)
@given(shard_rows, pool_rows, st.lists(st.integers(0, 120), max_size=12), kinds)
def test_positions_in_any_order_and_with_gaps_read_the_same_rows(rows, pool_rows, positions, kind):
    """Also without reading what is before them."""
    whole = read(make(rows, pool_rows=pool_rows, **kind), 0, 121)
    found = read_at(make(rows, pool_rows=pool_rows, **kind), np.array(positions, dtype=np.int64))
    assert found == [whole[p] for p in positions]


@given(shard_rows, pool_rows, st.integers(0, 3), kinds)
def test_pools_follow_each_other_and_none_is_small(rows, pool_rows, epoch, kind):
    order = make(rows, pool_rows=pool_rows, **kind)
    found, n = pools(order, epoch), sum(rows)
    assert [pool.start for pool in found] == [epoch * n, *(pool.stop for pool in found[:-1])]
    assert [pool.index for pool in found] == list(range(len(found)))
    sizes = [pool.stop - pool.start for pool in found]
    assert all(size >= pool_rows for size in sizes[:-1])
    assert sizes[-1] > pool_rows - kind["streams"] or len(sizes) == 1  # its last turn is cut


@given(shard_rows, pool_rows, st.integers(0, 3), kinds, st.integers(1, 8))
def test_the_shards_of_a_pool_are_those_its_positions_are_in(rows, pool_rows, epoch, kind, world):
    order = make(rows, pool_rows=pool_rows, **kind)
    streams = np.arange(order.streams)[:: max(order.streams // world, 1)]
    for pool in pools(order, epoch):
        positions = np.arange(pool.start, pool.stop)
        mine = positions[np.isin(positions % order.streams, streams)]
        found = order.shards_of(pool, streams)
        assert len(set(found)) == len(found)
        assert set(found) == set(order.locate(mine).shards.tolist())


@settings(max_examples=30)
@given(shard_rows, pool_rows, st.integers(0, 2), st.sampled_from([1, 2, 4, 8]))
def test_a_stream_is_a_run_of_the_permuted_shards(rows, pool_rows, epoch, streams):
    """And its pools are consecutive windows of it, each shuffled by itself."""
    order = make(rows, pool_rows=pool_rows, streams=streams)
    n, one = sum(rows), make(rows, pool_rows=1, streams=1)
    # Pools of one row show the order of the shards; the rows of a shard are as stored.
    shards = dict.fromkeys(shard for _, shard, _ in read(one, epoch * n, (epoch + 1) * n))
    sequence = [(epoch, shard, row) for shard in shards for row in range(rows[shard])]
    windows = [
        read_at(order, of_pool[of_pool % streams == stream])
        for stream in range(streams)
        for of_pool in (np.arange(pool.start, pool.stop) for pool in pools(order, epoch))
    ]
    assert [sorted(window, key=sequence.index) for window in windows] == [
        sequence[end - len(window) : end]
        for window, end in zip(windows, np.cumsum(list(map(len, windows))), strict=True)
    ]


def test_a_stream_is_worth_eight_shards():
    assert [streams_for(n) for n in (1, 15, 16, 100, 511, 512, 10_000)] == [
        1, 1, 2, 8, 32, STREAMS, STREAMS,
    ]  # fmt: skip
    found = [streams_for(1000, binned_batch=size) for size in (8, 96, 100, 256, 4096)]
    assert found == [1, 2, 2, 8, STREAMS]


def test_the_rows_of_a_pool_lie_in_64_shards():
    order = Order([2000] * 600, dataset_digest=DIGEST, seed=0, streams=streams_for(600))
    first = order.pool_at(0)
    assert first.stop - first.start >= POOL_ROWS == 262_144
    assert len(set(order.locate(np.arange(first.stop)).shards.tolist())) > 64
    assert pool_rows_for(128) == POOL_ROWS


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_a_rank_touches_its_part_of_the_shards(world_size):
    shards = 640
    order = Order([50] * shards, dataset_digest=DIGEST, seed=0, streams=STREAMS)
    everything = np.arange(order.epoch_rows)
    for rank in (0, world_size - 1):
        found = set(order.locate(everything[rank::world_size]).shards.tolist())
        assert len(found) <= 1.15 * shards / world_size


@pytest.mark.parametrize("other", [{"seed": 1}, {"digest": "f" * 64}])
def test_seed_and_data_set_both_decide_the_order(other):
    rows = [20, 20, 20]
    assert read(make(rows), 0, 60) == read(make(rows), 0, 60)
    assert read(make(rows), 0, 60) != read(make(rows, **other), 0, 60)


def test_each_epoch_has_an_order_of_its_own():
    order = make([20, 20, 20])
    assert {row[1:] for row in read(order, 0, 60)} == {row[1:] for row in read(order, 60, 120)}
    assert [row[1:] for row in read(order, 0, 60)] != [row[1:] for row in read(order, 60, 120)]


def test_examples_of_one_shard_are_spread_over_its_pool():
    order = make([500, 500], pool_rows=1000)
    halves = [shard for _, shard, _ in read(order, 0, 500)]
    assert 200 < sum(halves) < 300


def test_without_a_seed_rows_come_as_they_are_stored():
    order = make([2, 0, 3], seed=None)
    assert read(order, 0, 5) == [(0, 0, 0), (0, 0, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2)]


def test_the_order_never_changes():
    """If this fails, add a version: older checkpoints would continue with other examples."""
    order = make([3, 2, 4], seed=7, streams=3, pool_rows=6)
    found = " ".join(f"{'abc'[shard]}{row}" for _, shard, row in read(order, 0, 18))
    first, second = "a1 b0 c3 a0 c0 c2 a2 b1 c1", "a1 c2 b1 a0 c0 c3 a2 c1 b0"
    assert found == f"{first} {second}"  # the first is in order.py


# --- Ranks deal the rows of a global batch by length ----------------------------------------------


STEPS = 12

lengths = st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(1, 512), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]),
        min_size=shape[2],
        max_size=shape[2],
    ).map(lambda rows: (shape[0], np.array(rows)))
)


@given(lengths)
def test_dealt_ranks_have_as_many_rows_and_differ_by_less_than_one_row(case):
    ranks, rows = case
    for of_batch, dealt in zip(rows, deal(rows, ranks), strict=True):
        assert np.bincount(dealt, minlength=ranks).tolist() == [len(of_batch) // ranks] * ranks
        tokens = np.bincount(dealt, of_batch, minlength=ranks)
        assert np.ptp(tokens) <= np.ptp(of_batch)


def test_the_longest_rows_go_to_the_ranks_with_the_fewest_tokens():
    assert deal(np.array([[9, 4, 7, 3], [5, 5, 5, 5]]), 2).tolist() == [[0, 1, 1, 0], [0, 1, 0, 1]]


@given(st.integers(1, 64), st.integers(1, 300), st.integers(0, 10_000))
def test_groups_share_out_the_positions_and_are_the_smallest_with_enough_rows(ranks, rows, start):
    slices = [RankSlice(ranks * rows, rank, ranks) for rank in range(ranks)]
    groups = list(dict.fromkeys(one.group for one in slices))
    found = [slices[0].positions(np.array([start]), group) for group in groups]
    assert sorted(np.concatenate(found, axis=1)[0].tolist()) == [
        *range(start, start + ranks * rows)
    ]
    assert all(one.rank in one.group for one in slices)
    [size] = {len(group) for group in groups}
    assert size * rows >= order_module.GROUP_ROWS or size == ranks
    smaller = [n for n in range(1, size) if ranks % n == 0]
    assert all(n * rows < order_module.GROUP_ROWS for n in smaller)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([2, 3, 4]), st.sampled_from([1, 4, 6, 1024]), st.integers(0, 200))
def test_dealt_ranks_train_on_the_rows_of_every_other_world_size(
    small_folder, world_size, group_rows, start
):
    """In any group, from any position on, with masks redrawn in later epochs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "GROUP_ROWS", group_rows)
        whole = read_from(start, small_folder)
        ranks = [read_from(start, small_folder, rank, world_size) for rank in range(world_size)]
    for loaded, *parts in zip(whole, *ranks, strict=True):
        assert counts(*parts) == counts(loaded)
        assert digest_of(parts) == digest_text(loaded.digest)
        assert {len(part.batch) for part in parts} == {GLOBAL // world_size}
        assert sorted(row for part in parts for row in rows_of(part)) == sorted(rows_of(loaded))


def read_from(start, folder, rank=0, world_size=1):
    """The batches without padding from a position on."""
    options = {"batch_size": GLOBAL, **ORDER, "prefetch": 0, "unpadded": True}
    loader = Loader(folder, rank=rank, world_size=world_size, **options)
    loader.load_state_dict(loader.state_dict(start))
    return list(islice(loader, STEPS))


def rows_of(loaded):
    """The tokens, masked positions and labels of each row."""
    rows = [loaded.batch.slice(row, row + 1) for row in range(len(loaded.batch))]
    names = ("input_ids", "token_type_ids", "masked_lm_positions", "masked_lm_labels")
    return [tuple(tuple(row.tensors()[name].tolist()) for name in names) for row in rows]


def test_only_ranks_whose_work_depends_on_tokens_are_dealt(small_folder, tmp_path):
    packed = write_data_set(tmp_path, train=(40,), config=replace(SMALL, pairs="packed"))
    for folder in (small_folder, packed):
        padded, unpadded = (
            [[part.num_tokens for part in parts] for parts in of_ranks(folder, STEPS, 2, **layout)]
            for layout in ({}, {"unpadded": True})
        )
        assert (padded == unpadded) == (folder is packed)
        assert list(map(sum, padded)) == list(map(sum, unpadded))


def test_a_rank_opens_the_shards_of_its_group_and_no_others(tmp_path, monkeypatch):
    """8 ranks of 4 rows on 8 streams, in groups of 2, 4 and 8."""
    folder = write_data_set(tmp_path, train=(64,) * 8)
    for rows, opened in ((4, 1), (8, 2), (16, 4), (1024, 8)):
        monkeypatch.setattr(order_module, "GROUP_ROWS", rows)
        options = {"batch_size": 32, "seed": 0, "streams": 8, "prefetch": 0, "unpadded": True}
        reader = Loader(folder, rank=3, world_size=8, **options).reader()
        next(reader.slabs([0]))
        assert len(reader._open._opened) == opened
