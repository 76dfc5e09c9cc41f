"""How one process notices a stop request and counts time; test_distributed has several."""

import os
import signal

import pytest
import torch

from clozeline.train.engine.distributed import World
from clozeline.train.pretraining.stop_and_budget import SIGNALS, StopAndBudget

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
        assert not control.is_stopped  # until the step in progress is finished
        control.after_step()
        assert control.is_stopped
    assert [signal.getsignal(each) for each in SIGNALS] == before
