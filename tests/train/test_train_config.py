"""The pretraining config: impossible values are refused with the possible ones."""

import math

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.config import PretrainConfig
from tests.support.training_configs import training_config


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"masked_lm_prob": 0.0}, "masked_lm_prob is 0.0; it must be 0.01 to 1.0."),
        ({"masked_lm_prob": math.nan}, "masked_lm_prob is nan; it must be 0.01 to 1.0"),
        ({"phase": "work/64@0.5"}, "phase is 'work/64@0.5'; give a tuple of texts"),
        ({"batch_size": 0}, "batch_size is 0; it must be 1 to 1048576."),
        ({"length_bins": 1 << 21}, "length_bins is 2097152; it must be 0 to 1048576."),
        ({"micro_batch_size": 0}, "micro_batch_size is 0; it must be 1 or more."),
        ({"max_steps": 0}, "max_steps is 0; it must be 1 or more."),
        ({"max_steps": 1 << 41}, f"max_steps is {1 << 41}; it must be 1 to {1 << 40}."),
        ({"for_": "9999999d"}, "for is '9999999d'; it must be 10 years"),
        ({"keep": 0}, "keep is 0; it must be 1 or more."),
        ({"save_every": -1}, "save_every is -1; it must be 0 or more."),
        ({"clip": -0.5}, "clip is -0.5; it must be 0 or more."),
        ({"seed": 1 << 63}, "seed is 9223372036854775808; it must be 0 to 9223372036854775807."),
        ({"cool_down": 0.0}, "cool_down is 0.0; it must be more than 0."),
        ({"cool_down": 1.5}, "cool_down is 1.5; it must be 0 to 1."),
        ({"clip": math.inf}, "clip is inf; it must be 0 or more and finite."),
        ({"learning_rate": math.nan}, "learning_rate is nan; it must be more than 0 and finite."),
        ({"beta1": math.nan}, "beta1 is nan; it must be at least 0 and below 1."),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be more than 0."),
        ({"learning_rate": 1e38}, r"learning_rate is 1e\+38; it must be at most 1e\+30."),
        ({"warmup": 1.0}, "warmup is 1.0; it must be at least 0 and below 1."),
        ({"beta2": 1.0}, "beta2 is 1.0; it must be at least 0 and below 1."),
        (
            {"schedule": "sine"},
            "schedule is 'sine'; it must be one of linear, cosine, wsd, wsd-sqrt, ",
        ),
        ({"precision": "fp16"}, "precision is 'fp16'; it must be one of auto, fp32, bf16."),
        ({"parallel": "tp"}, "parallel is 'tp'; it must be one of ddp, fsdp."),
        ({"eval_every": -1}, "eval_every is -1; it must be 0 or more."),
        ({"for_": "30"}, "for is '30'; give a time such as 90s, 30m, 1h30m or 2d."),
        ({"deterministic": True, "for_": "5m"}, "deterministic excludes a time budget"),
        ({"for_": "m"}, "for is 'm'; give a time"),
        ({"for_": "0s"}, "for is '0s'; it must be more than 0."),
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
