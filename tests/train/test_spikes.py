"""A step with an unusual gradient is skipped, counted, and the same after a restart."""

import math
import shutil

import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.train.engine.distributed import World
from clozeline.train.engine.spikes import FIRST_STEPS, MEMORY, SpikeGuard
from tests.support.small_training import assert_same_run, go_back, numbers, train, weights
from tests.train.test_step import STILL, step

ALONE = World(0, 1, torch.device("cpu"))
#: Norms around 2.0 with a deviation of 0.2.
USUAL = [2.0 + 0.2 * (-1) ** i for i in range(FIRST_STEPS)]
#: Of a tiny model, so few deviations skip some of 40 steps.
OPTIONS = {"max_steps": 40, "save_every": 10, "skip_spikes": 0.1, "learning_rate": 0.01}


def skipped(norms, deviations=6.0):
    """The places of the norms that are skipped."""
    guard = SpikeGuard(deviations)
    found = [i for i, norm in enumerate(norms) if guard.skips(torch.tensor(norm), ALONE)]
    assert guard.skipped == len(found)
    return found


@pytest.mark.parametrize(
    ("next_norms", "places"),
    [
        ([3.1], []),  # within 2.0 + 6 * 0.2
        ([3.3], [0]),
        ([30.0, 2.0], [0]),
        ([math.inf, math.nan, 2.0], []),  # diverged: not skipped, and not in the mean
        ([math.nan, 30.0], [1]),
    ],
)
def test_a_norm_beyond_the_deviations_is_skipped(next_norms, places):
    found = skipped([*USUAL, *next_norms])
    assert found == [FIRST_STEPS + place for place in places]


def test_the_first_steps_are_never_skipped_and_a_steady_norm_leaves_room():
    assert skipped([2.0 * 10**i for i in range(FIRST_STEPS)]) == []
    assert skipped([2.0] * FIRST_STEPS + [2.5, 2.7]) == [FIRST_STEPS + 1]


def test_a_lasting_change_is_followed():
    found = skipped([*USUAL, *[20.0] * MEMORY])
    assert 1 < len(found) < MEMORY / 4
    assert found == list(range(FIRST_STEPS, FIRST_STEPS + len(found)))


def test_a_skipped_step_leaves_the_weights_and_its_gradients_are_gone():
    model = BertForPretraining(STILL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    guard = SpikeGuard(6.0, [FIRST_STEPS, 1e-6, 0.0, 3.0])
    _, norm, updated = step(model, guard=guard)
    assert (norm > 1e-3, updated, guard.skipped) == (True, {}, 4)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert step(model)[2]


def test_a_resumed_run_skips_the_same_steps(small_folder, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(small_folder, whole, **OPTIONS)
    skipped_steps = [line["skipped_steps"] for line in numbers(whole) if "skipped_steps" in line]
    assert skipped_steps[19] == 0 < skipped_steps[29] < skipped_steps[39] < 20
    shutil.copytree(whole, run)
    train(small_folder, go_back(run, 30), resume=True, **OPTIONS)
    assert_same_run(run, whole)


def test_without_spikes_the_run_is_that_without_the_option(small_folder, tmp_path):
    options = {"max_steps": FIRST_STEPS + 4, "save_every": 0}
    for name, deviations in (("off", 0.0), ("on", 1e6)):
        train(small_folder, tmp_path / name, skip_spikes=deviations, **options)
    on, off = (numbers(tmp_path / name) for name in ("on", "off"))
    assert [line.pop("skipped_steps", 0) for line in on] == [0] * len(on)
    assert on == off
    assert weights(tmp_path / "on") == weights(tmp_path / "off")
