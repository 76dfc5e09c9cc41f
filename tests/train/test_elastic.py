"""A run may change processes, workers, accumulation and batch size: the sequence of examples stays.

A leg is a few steps in one setting; the next leg continues from the state of the one before. The
legs, one after the other, have to train on the sequence that a single process reads.
"""

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from clozeline.pipeline.common.errors import CheckFailedError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.data.loader import Loader
from clozeline.train.data.loader_check import check_loader
from clozeline.train.data.order import Order
from tests.pipeline.test_job import shards
from tests.support.command import output_of, refused
from tests.support.small_data import SMALL, write_data_set
from tests.train.test_loader import ORDER, joined, load, rows_of

WORLDS, WORKERS, ACCUMULATIONS = (1, 2, 3, 4), (0, 1, 2, 3), (1, 2, 4)  # and 8, in legs
#: Positions; more than all legs of a test read together.
FAR = 1200


@pytest.fixture(scope="module", params=[(13, 20, 0, 7, 17), (5,), (2, 0, 1)], ids=str)
def folder(request, tmp_path_factory):
    """Data sets of several pools, and ones smaller than a pool, a batch, and a row per stream."""
    config = SMALL if len(request.param) > 1 else replace(SMALL, format="webdataset")
    return write_data_set(tmp_path_factory.mktemp("data"), train=request.param, config=config)


@pytest.fixture(scope="module")
def sequence(folder):
    """The examples, with their masks, as one process reads them."""
    return rows_of(load(folder, 1, batch_size=FAR))


def leg(folder, state, *, world_size, steps, workers=0, accumulation=1, micro_batch_size=1):
    """The examples of a few steps, in the order of their positions, and the state after them."""
    batch_size = world_size * accumulation * micro_batch_size
    parts = []
    for rank in range(world_size):
        options = {"batch_size": batch_size, "rank": rank, "world_size": world_size}
        loader = Loader(folder, **options, **ORDER, prefetch=rank % 2)
        if state:
            loader.load_state_dict(state)
        batches = DataLoader(loader, batch_size=None, num_workers=workers) if workers else loader
        parts.append(list(islice(batches, steps)))
    state = loader.state_dict(parts[0][-1].next_position)
    rows = []
    for of_ranks in zip(*parts, strict=True):
        for loaded in of_ranks:
            assert loaded.next_position == of_ranks[0].next_position
            micro_batches = loaded.batch.split(accumulation)
            assert [len(micro) for micro in micro_batches] == [micro_batch_size] * accumulation
        rows += rows_of([joined(of_ranks)])
    return rows, state


LEGS = st.fixed_dictionaries(
    {
        "world_size": st.sampled_from((*WORLDS, 8)),
        "accumulation": st.sampled_from(ACCUMULATIONS),
        "micro_batch_size": st.integers(1, 3),
        "steps": st.integers(1, 3),
    }
)


@settings(max_examples=6)
@given(st.lists(LEGS, min_size=2, max_size=4))
def test_stopped_at_any_step_it_continues_in_any_setting_with_the_next_example(
    folder, sequence, legs
):
    found, state = [], None
    for setting in legs:
        rows, state = leg(folder, state, **setting)
        found += rows
    assert found == sequence[: len(found)]
    assert state["next_position"] == len(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on few cores
def test_all_settings_in_turn_with_real_workers_read_the_sequence(folder, sequence):
    """Each of the 48 settings continues where the one before it stopped."""
    found, state = [], None
    for world_size, workers, accumulation in product(WORLDS, WORKERS, ACCUMULATIONS):
        sizes = {"world_size": world_size, "workers": workers, "accumulation": accumulation}
        rows, state = leg(folder, state, **sizes, steps=2)
        found += rows
    assert len(found) == 2 * 10 * 4 * 7 <= FAR
    assert found == sequence[: len(found)]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on few cores
@pytest.mark.parametrize(("place", "format"), [("{}", "arrow"), ("file://{}", "webdataset")])
@pytest.mark.parametrize(
    ("world_size", "workers"), [(2, 2), pytest.param(8, 3, marks=pytest.mark.slow)]
)
def test_ranks_with_real_workers_read_an_epoch_of_any_format_from_anywhere(
    world_size, workers, format, place, tmp_path
):
    rows = (13, 20, 0, 7, 16)
    folder = write_data_set(tmp_path, train=rows, config=replace(SMALL, format=format))
    whole = rows_of(load(folder, 1, batch_size=sum(rows)))
    processes = {"world_size": world_size, "workers": workers, "steps": sum(rows) // world_size}
    found, state = leg(place.format(folder), None, **processes)
    assert found == whole
    assert state["next_position"] == sum(rows)


# `clozeline verify --loader`: sound orders pass, and a broken one is reported


@pytest.mark.parametrize("rows", [(7,), (13, 20, 0, 7, 17), (150, 151)])
def test_the_guarantees_hold_on_any_shards(tmp_path, rows):
    folder = write_data_set(tmp_path / "data", train=rows)
    assert check_loader(folder).startswith(f"{sum(rows)} training examples are each read once")


def test_an_order_that_reads_a_row_twice_is_reported(tmp_path, monkeypatch):
    folder = write_data_set(tmp_path / "data", train=(40, 23))
    assert len(read_shard(folder / read_manifest(folder).shards[0].name)) == 40
    right = Order.locate
    monkeypatch.setattr(Order, "locate", lambda self, at: right(self, np.where(at == 5, 4, at)))
    with pytest.raises(CheckFailedError, match="does not read each training example once"):
        check_loader(folder)


def test_the_command_reads_each_row_with_the_loader_and_needs_shards(tmp_path):
    manifest, _ = shards(tmp_path)
    examples = manifest.num_examples("train")
    read = output_of("verify", tmp_path / "out", "--loader")
    assert f"{examples} training examples are each read once" in read
    refused("verify", tmp_path, "--loader")
