"""What one process alone agrees on with itself; several do in test_distributed."""

import os
import signal

import torch

from train.engine.distributed import World
from train.pretraining.stop_and_budget import Pace, stop_requests

ALONE = World(0, 1, torch.device("cpu"))


def test_alone_every_step_hears_of_a_request_and_it_stays():
    pace = Pace(ALONE)
    pace.step(is_asked=False)
    assert not pace.is_stopped
    pace.step(is_asked=True)
    assert pace.is_stopped
    pace.step(is_asked=False)
    assert pace.is_stopped


def test_the_clock_goes_on_from_the_seconds_of_earlier_lives_and_stands_between_steps():
    pace = Pace(ALONE, elapsed=100.0)
    assert pace.elapsed == 100.0
    pace.step(is_asked=False)
    first = pace.elapsed
    pace.step(is_asked=False)
    assert 100.0 < first < pace.elapsed


def test_a_signal_is_a_request_and_afterwards_what_it_was_before():
    before = [signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)]
    with stop_requests() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
    assert [signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)] == before
