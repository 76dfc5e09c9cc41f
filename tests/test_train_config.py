"""Values that make no training are refused with those that would."""

import json

import pytest

from pipeline.common.errors import InputError
from train.config import PretrainConfig


def test_it_comes_back_from_json():
    config = PretrainConfig(batch_size=12, micro_batch_size=3, schedule="wsd", compile=False)
    assert PretrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_size": 0}, "batch_size is 0; give at least 1."),
        ({"micro_batch_size": 0}, "micro_batch_size is 0; give at least 1."),
        ({"max_steps": 0}, "max_steps is 0; give at least 1."),
        ({"keep": 0}, "keep is 0; give at least 1."),
        ({"save_every": -1}, "save_every is -1; give at least 0."),
        ({"clip": -0.5}, "clip is -0.5; give at least 0."),
        ({"seed": -1}, "seed is -1; give at least 0."),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; give more than 0."),
        ({"warmup": 1.0}, r"warmup is 1.0; it lies in \[0, 1\)."),
        ({"beta2": 1.0}, r"beta2 is 1.0; it lies in \[0, 1\)."),
        ({"schedule": "sine"}, "schedule is 'sine'; it is one of linear, cosine, wsd, constant."),
        ({"precision": "fp16"}, "precision is 'fp16'; it is one of fp32, bf16."),
        ({"parallel": "tp"}, "parallel is 'tp'; it is one of ddp, fsdp."),
        ({"optimizer": "muon", "parallel": "fsdp"}, "muon needs whole matrices, and parallel fsdp"),
        ({"eval_every": -1}, "eval_every is -1; give at least 0."),
        ({"batch_ramp": 1.0}, r"batch_ramp is 1.0; it lies in \[0, 1\)."),
        ({"batch_size": 20, "batch_ramp": 0.1}, "no whole eighth for .*; 16 or 24 has."),
        ({"for_": "30"}, "for is '30'; give a time, as in 90s, 30m, 1h30m or 2d."),
        ({"for_": "m"}, "for is 'm'; give a time"),
        ({"for_": "5m x"}, "for is '5m x'; give a time"),
        ({"for_": "0s"}, "for is '0s'; give more than no time."),
    ],
)
def test_an_impossible_value_is_refused_with_what_is_possible(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        PretrainConfig(**changes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), ("0.5h", 1800), (None, None)],
)
def test_a_time_is_seconds(text, seconds):
    assert PretrainConfig(for_=text).budget == seconds


def test_a_pass_is_as_small_as_the_batch_while_the_batch_is_small():
    config = PretrainConfig(batch_size=64, micro_batch_size=8, batch_ramp=0.1)
    assert [config.accumulation(2, size) for size in (8, 16, 32, 64)] == [1, 1, 2, 4]
    with pytest.raises(InputError, match="batch_size 8 does not divide among 16 processes"):
        config.accumulation(16, 8)


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "passes"),
    [(8, None, 1, 1), (8, 2, 1, 4), (8, None, 4, 1), (8, 2, 2, 2), (8, 4, 2, 1), (3, 1, 3, 1)],
)
def test_the_passes_of_a_step_follow_from_the_sizes(batch, micro, processes, passes):
    config = PretrainConfig(batch_size=batch, micro_batch_size=micro)
    assert config.accumulation(processes) == passes


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "complaint"),
    [
        (10, None, 4, "batch_size 10 does not divide among 4 processes; 8 or 12 would."),
        (3, None, 4, "batch_size 3 does not divide among 4 processes; 4 would."),
        (12, 4, 2, "micro_batch_size 4 does not divide the 6 examples of each process; "
         "one of 1, 2, 3, 6 would."),
        (4, 8, 1, "micro_batch_size 8 does not divide the 4 examples of each process; "
         "one of 1, 2, 4 would."),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_divide_is_refused_with_those_that_would(
    batch, micro, processes, complaint
):
    config = PretrainConfig(batch_size=batch, micro_batch_size=micro)
    with pytest.raises(InputError) as refusal:
        config.accumulation(processes)
    assert str(refusal.value) == complaint
