"""Phases: what the options make of a run, and the laws of order across a change of phase."""

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.config import PretrainConfig, phase_starts
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.phases import PhasedLoader, data_sets_of, find_phases, states_of
from clozeline.train.engine.schedule import phase_at
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_runs import training_config
from tests.train.test_loader import ORDER, joined, rows_of

SHORT = replace(SMALL, max_seq_length=8, max_predictions_per_seq=2)
BATCH = 6  # of the long data set; 12 of the short one
RATE = 0.25
#: A batch of each, by phase; each data set is read twice.
TURNS = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3]


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("long"), train=(13, 20, 0, 7, 17))


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("short"), train=(11, 30, 8), config=SHORT)


def phases_of(long, **changes):
    return find_phases(long, read_manifest(long), training_config(**changes))


@pytest.mark.parametrize(
    ("phases", "starts"),
    [
        ("", {None: 0}),
        ("a", {"a": 0, None: 0.5}),
        ("a b c", {"a": 0, "b": 0.25, "c": 0.5, None: 0.75}),
        ("a@0.9", {"a": 0, None: 0.9}),
        ("a@0.5 b", {"a": 0, "b": 0.5, None: 0.75}),
        ("a b@.2", {"a": 0, "b": 0.4, None: 0.6}),
        ("a@0.6 b@0.3", {"a": 0, "b": 0.6, None: 0.9}),
        ("s3://me@host/a a@b@0.5", {"s3://me@host/a": 0, "a@b": 0.25, None: 0.75}),
    ],
)
def test_data_sets_take_their_fractions_and_share_the_rest(phases, starts):
    assert {folder: start for start, folder in phase_starts(phases.split())} == starts


def test_each_data_set_is_a_phase(long, short):
    found = phases_of(long, phase=(f"{short}@0.25", f"{long}@0.5", str(short)), masked_lm_prob=0.5)
    assert [(x.start, x.shards, x.max_predictions) for x in found] == [
        (0.0, str(short), 4),  # of 8 tokens
        (0.25, str(long), 8),  # of 16
        (0.75, str(short), 4),
        (0.875, str(long), 8),
    ]
    assert [(x.max_seq_length, x.batch_factor) for x in found] == [(8, 2), (16, 1)] * 2
    digests = [read_manifest(folder).dataset_digest for folder in (short, long)]
    assert data_sets_of(found) == digests


def test_a_run_without_schedules_is_one_phase_with_the_masks_of_its_shards(long):
    [found] = phases_of(long)
    assert (found.start, found.batch_factor) == (0.0, 1)
    assert found.max_predictions == 3  # of SMALL


def test_each_step_has_the_phase_in_which_its_middle_is(long, short):
    config = training_config(max_steps=12, phase=(f"{short}@0.5", f"{long}@0.25"))
    phases = find_phases(long, read_manifest(long), config)
    assert [phases.index(phase_at(phases, config, step)) for step in range(1, 13)] == (
        [0] * 6 + [1] * 3 + [2] * 3
    )
    timed = replace(config, for_="100s")  # seconds, not steps
    at = [phase_at(phases, timed, 1, seconds) for seconds in (0.0, 49.9, 50.0, 74.9, 75.0, 999.0)]
    assert [phases.index(phase) for phase in at] == [0, 0, 1, 1, 2, 2]


def open_all(long, short, *, state=None, **ranks):
    """The loaders of a run whose last data set is `long`."""
    options = {"prefetch": 0, "masked_lm_prob": RATE, **ORDER, **ranks}
    loaders = {
        read_manifest(folder).dataset_digest: Loader(folder, batch_size=size, **options)
        for folder, size in ((short, 2 * BATCH), (long, BATCH))
    }
    loader = PhasedLoader(loaders, read_manifest(long).dataset_digest)
    if state:
        loader.load_state_dict(state)
    return loader


def four_phases(long, short):
    return phases_of(long, phase=(str(short), str(long), str(short)), masked_lm_prob=RATE)


def read(loader, phases, turns):
    """A batch for each turn, which is the number of its phase."""
    found, before = [], None
    for turn in turns:
        if turn != before:
            before, batches = turn, loader.batches(phases[turn])
        found.append(next(batches))
    return found


def test_each_data_set_is_read_on_where_its_last_phase_stopped(long, short):
    """Every example once an epoch, masked at the rate, and the digest of what was read."""
    phases = four_phases(long, short)
    found = read(open_all(long, short), phases, TURNS)
    for folder, size, mine in ((short, 12, (0, 2)), (long, 6, (1, 3))):
        here = [(turn, x) for turn, x in zip(TURNS, found, strict=True) if turn in mine]
        sizes = [len(loaded.batch) for _, loaded in here]
        assert sizes == [size] * len(here)
        plain = islice(Loader(folder, batch_size=size, prefetch=0, **ORDER), len(here))
        assert [x.digest for _, x in here] == [x.digest for x in plain]
        for turn, loaded in here:
            phase = phases[turn]
            assert loaded.batch.masked_lm_positions.shape[1] == phase.max_predictions
            counts = loaded.batch.masked_lm_weights.sum(1)
            tokens = loaded.batch.attention_mask.sum(1)
            wanted = torch.floor(tokens * RATE + 0.5).clamp(1, phase.max_predictions)
            assert torch.equal(counts, wanted.float())


@pytest.mark.parametrize("stop", range(1, len(TURNS)))
def test_stopped_anywhere_it_continues_with_the_very_next_example(stop, long, short):
    """In other hands: three processes, in batches of the same size."""
    phases = four_phases(long, short)
    whole = read(open_all(long, short), phases, TURNS)
    loader = open_all(long, short)
    read(loader, phases, TURNS[:stop])
    state = loader.state_dict()
    assert [x["next_position"] for x in states_of(state)] == [
        6 * sum(turn in (1, 3) for turn in TURNS[:stop]),
        12 * sum(turn in (0, 2) for turn in TURNS[:stop]),
    ]
    ranks = [
        read(open_all(long, short, state=state, rank=r, world_size=3), phases, TURNS[stop:])
        for r in range(3)
    ]
    for of_ranks, wanted in zip(zip(*ranks, strict=True), whole[stop:], strict=True):
        assert rows_of([joined(of_ranks)]) == rows_of([wanted])
        assert digest_text(*(x.digest for x in of_ranks)) == digest_text(wanted.digest)


def test_a_state_of_other_data_sets_is_refused(long, short):
    state = open_all(long, short).state_dict()
    other = open_all(short, long)
    with pytest.raises(InputError, match="dataset_digest"):
        other.load_state_dict(state)


@pytest.mark.parametrize("most", [3, 1])
def test_at_the_rate_of_the_shards_their_own_masks_are_drawn(most, tmp_path):
    """In the first epoch they are those stored, also where their limit is below the rate."""
    config = replace(SMALL, max_predictions_per_seq=most)
    folder = write_data_set(tmp_path, train=(13, 20, 7), config=config)
    options = {"batch_size": 8, "prefetch": 0, **ORDER}
    stored, drawn = (
        list(islice(Loader(folder, **options, **rate), 12))
        for rate in ({}, {"masked_lm_prob": SMALL.masked_lm_prob})
    )
    assert rows_of(stored) == rows_of(drawn)
    [phase] = phases_of(folder, masked_lm_prob=SMALL.masked_lm_prob)
    assert phase.max_predictions == most


def test_at_another_rate_each_epoch_has_other_masks(long):
    options = {"batch_size": 57, "prefetch": 0, "masked_lm_prob": 0.3, **ORDER}
    first, second = islice(Loader(long, **options), 2)
    assert sorted(rows_of([first])) != sorted(rows_of([second]))


# --- The pretraining config: impossible values are refused with the possible ones -----------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"masked_lm_prob": 0.0}, "masked_lm_prob is 0.0; it must be 0.01 to 1.0."),
        ({"phase": 5}, "phase is 5; give a str, or a list of them"),
        ({"batch_size": 0}, "batch_size is 0; it must be 1 to 1048576."),
        ({"micro_batch_size": 0}, "micro_batch_size is 0; it must be 1 or more."),
        ({"max_steps": 1 << 41}, f"max_steps is {1 << 41}; it must be 1 to {1 << 40}."),
        ({"for_": "9999999d"}, "for is '9999999d'; it must be 10 years"),
        ({"clip": -0.5}, "clip is -0.5; it must be 0 or more."),
        ({"seed": 1 << 63}, "seed is 9223372036854775808; it must be 0 to 9223372036854775807."),
        ({"cool_down": 0.0}, "cool_down is 0.0; it must be more than 0."),
        ({"learning_rate": math.nan}, "learning_rate is nan; it must be more than 0 and finite."),
        ({"learning_rate": 1e38}, r"learning_rate is 1e\+38; it must be at most 1e\+30."),
        ({"warmup": 1.0}, "warmup is 1.0; it must be at least 0 and below 1."),
        ({"schedule": "sine"}, "schedule is 'sine'; it must be one of linear, cosine, wsd, wsd-sq"),
        ({"parallel": "tp"}, "parallel is 'tp'; it must be one of ddp, fsdp."),
        ({"for_": "30"}, "for is '30'; give a time such as 90s, 30m, 1h30m or 2d."),
        ({"deterministic": True, "for_": "5m"}, "deterministic excludes a time budget"),
    ],
)
def test_an_impossible_value_is_refused_with_what_is_possible(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        training_config(**changes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), ("0.5h", 1800), (None, None)],
)
def test_a_time_is_parsed_to_seconds(text, seconds):
    assert training_config(for_=text).budget == seconds


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "passes"),
    [(8, None, 1, 1), (8, 2, 1, 4), (8, None, 4, 1), (8, 2, 2, 2), (8, 4, 2, 1), (3, 1, 3, 1)],
)
def test_accumulation_follows_from_the_sizes(batch, micro, processes, passes):
    config = training_config(batch_size=batch, micro_batch_size=micro)
    assert config.accumulation(processes) == passes


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "complaint"),
    [
        (10, None, 4, "--batch-size 10 cannot be divided among 4 processes; use 8 or 12."),
        (3, None, 4, "--batch-size 3 cannot be divided among 4 processes; use 4."),
        (12, 4, 2, "the 6 examples of each process are not divisible by "
         "--micro-batch-size 4; use one of 1, 2, 3, 6."),
        (4, 8, 1, "the 4 examples of each process are not divisible by "
         "--micro-batch-size 8; use one of 1, 2, 4."),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_divided_is_refused_with_sizes_that_can(
    batch, micro, processes, complaint
):
    config = training_config(batch_size=batch, micro_batch_size=micro)
    with pytest.raises(InputError) as refusal:
        config.accumulation(processes)
    assert str(refusal.value) == complaint


def test_a_config_of_another_version_is_refused():
    values = training_config().to_dict()
    del values["cool_down"]
    with pytest.raises(ValueError, match="another version of Clozeline: missing cool_down"):
        PretrainConfig.from_dict(values)
