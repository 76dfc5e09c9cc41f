"""Ranks deal the rows of a global batch by length: equal numbers of rows, nearly equal tokens."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.train.data import rank_slice
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.rank_slice import RankSlice, deal
from tests.support.small_data import SMALL, write_data_set
from tests.train.test_loader import GLOBAL, ORDER, counts, digest_of, of_ranks

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
    assert size * rows >= rank_slice.GROUP_ROWS or size == ranks
    smaller = [n for n in range(1, size) if ranks % n == 0]
    assert all(n * rows < rank_slice.GROUP_ROWS for n in smaller)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([2, 3, 4]), st.sampled_from([1, 4, 6, 1024]), st.integers(0, 200))
def test_dealt_ranks_train_on_the_rows_of_every_other_world_size(
    small_folder, world_size, group_rows, start
):
    """In any group, from any position on, with masks redrawn in later epochs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_slice, "GROUP_ROWS", group_rows)
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
        monkeypatch.setattr(rank_slice, "GROUP_ROWS", rows)
        options = {"batch_size": 32, "seed": 0, "streams": 8, "prefetch": 0, "unpadded": True}
        loader = Loader(folder, rank=3, world_size=8, **options)
        list(islice(loader, 1))
        assert len(loader._opened) == opened
