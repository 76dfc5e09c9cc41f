"""The schedule as a table: the learning rate at each step."""

import os
import signal
from signal import SIGUSR1

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.train.engine.distributed import World
from clozeline.train.engine.schedule import (
    first_step_from,
    is_over,
    learning_rate_at,
    progress,
    schedule_factor,
)
from clozeline.train.pretraining.stop_and_budget import SIGNALS, StopAndBudget
from tests.support.training_configs import training_config

SCHEDULES = ("linear", "cosine", "wsd", "wsd-sqrt", "constant")

# 10 steps, of which 2 warm up: the learning rate relative to its peak in the middle of each step.
TABLE = {
    "linear": [0.25, 0.75, 0.9375, 0.8125, 0.6875, 0.5625, 0.4375, 0.3125, 0.1875, 0.0625],
    "cosine": [0.25, 0.75, 0.9904, 0.9157, 0.7778, 0.5975, 0.4025, 0.2222, 0.0843, 0.0096],
    "wsd": [0.25, 0.75, 1, 1, 1, 1, 1, 1, 0.9375, 0.3125],
    "wsd-sqrt": [0.25, 0.75, 1, 1, 1, 1, 1, 1, 0.75, 0.1708],
    "constant": [0.25, 0.75, 1, 1, 1, 1, 1, 1, 1, 1],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_of_each_step_follows_the_table(schedule):
    config = training_config(max_steps=10, warmup=0.2, learning_rate=2.0, schedule=schedule)
    rates = [learning_rate_at(config, step) for step in range(1, 11)]
    assert rates == pytest.approx([2 * factor for factor in TABLE[schedule]], abs=2e-4)


@given(st.floats(0, 1), st.floats(0, 0.99), st.sampled_from(SCHEDULES))
def test_the_factor_is_between_0_and_1(done, warmup, schedule):
    assert 0 <= schedule_factor(done, warmup=warmup, schedule=schedule) <= 1


@given(st.floats(0, 0.99), st.sampled_from(SCHEDULES))
def test_the_rate_peaks_where_the_warmup_ends(warmup, schedule):
    assert schedule_factor(warmup, warmup=warmup, schedule=schedule) == 1
    just_after = schedule_factor(warmup + 1e-9, warmup=warmup, schedule=schedule)
    assert just_after == pytest.approx(1, abs=1e-3)  # 1 - sqrt(x) begins steeply


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_no_step_is_wasted_on_a_rate_of_zero(steps, schedule):
    config = training_config(max_steps=steps, schedule=schedule)
    assert all(learning_rate_at(config, step) > 0 for step in range(1, steps + 1))


def test_with_a_time_budget_the_rate_follows_the_seconds_and_not_the_steps():
    timed = training_config(for_="100s", warmup=0.2, learning_rate=2.0)
    steps, seconds = (1, 900, 901, 902, 9_000, 9_001), (0.0, 10.0, 20.0, 60.0, 100.0, 130.0)
    rates = [learning_rate_at(timed, *at) for at in zip(steps, seconds, strict=True)]
    assert rates == pytest.approx([0, 1, 2, 1, 0, 0])


def test_a_run_is_over_after_its_steps_or_its_seconds():
    steps, timed = training_config(max_steps=5), training_config(max_steps=5, for_="5m")
    assert [is_over(steps, *at) for at in ((4, 1e9), (5, 0.0))] == [False, True]
    assert [is_over(timed, *at) for at in ((10**9, 299.0), (0, 300.0))] == [False, True]


# How one process notices a stop request and counts time; test_distributed has several


ALONE = World(0, 1, torch.device("cpu"))


def test_a_single_process_notices_a_request_at_the_next_step_and_stays_stopped():
    control = StopAndBudget(ALONE)
    control.after_step()
    assert not control.is_stopped
    control.after_step(stop=True)
    assert control.is_stopped
    control.after_step()
    assert control.is_stopped


def test_time_continues_from_earlier_processes_and_only_changes_between_steps():
    control = StopAndBudget(ALONE, elapsed=100.0)
    assert control.elapsed == 100.0
    control.after_step()
    first = control.elapsed
    control.after_step()
    assert 100.0 < first < control.elapsed


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_is_a_request_inside_the_context_and_handlers_are_restored(kind):
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopAndBudget(ALONE) as control:
        os.kill(os.getpid(), kind)
        assert (control.is_stopped, control.saves_now) == (False, False)  # the step goes on
        control.after_step()
        assert (control.is_stopped, control.saves_now) == (kind != SIGUSR1, kind == SIGUSR1)
        control.sync()  # an evaluation after that step
        assert control.saves_now == (kind == SIGUSR1)
        control.after_step()
        assert not control.saves_now  # one checkpoint for a request
    assert [signal.getsignal(each) for each in SIGNALS] == before


@given(st.integers(1, 300), st.integers(0, 100).map(lambda n: n / 100))
def test_a_part_begins_with_the_first_step_that_has_reached_its_start(steps, start):
    config = training_config(max_steps=steps)
    reached = [n for n in range(1, steps + 1) if progress(config, n, 0.0) >= start]
    assert first_step_from(config, start) == min(reached, default=steps + 1)


def test_a_start_in_the_very_middle_of_a_step_takes_that_step():
    assert first_step_from(training_config(max_steps=50), 0.55) == 28
