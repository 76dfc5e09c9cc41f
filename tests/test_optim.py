"""The schedules as tables, and what decays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.heads import BertForPretraining
from tests.small_training import TINY
from train.config import PretrainConfig
from train.optim import (
    adamw,
    build_optimizer,
    learning_rate_at,
    schedule_factor,
    set_learning_rate,
)

SCHEDULES = ("linear", "cosine", "wsd", "constant")

# 10 steps, 2 of warm-up, so that 8 are left: share of the highest rate at the end of each step.
TABLE = {
    "linear": [0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0],
    "cosine": [0.5, 1, 0.9619, 0.8536, 0.6913, 0.5, 0.3087, 0.1464, 0.0381, 0],
    "wsd": [0.5, 1, 1, 1, 1, 1, 1, 1, 0.625, 0],
    "constant": [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_of_each_step_is_that_of_the_table(schedule):
    config = PretrainConfig(max_steps=10, warmup=0.2, learning_rate=2.0, schedule=schedule)
    rates = [learning_rate_at(step, config) for step in range(1, 11)]
    assert rates == pytest.approx([2 * factor for factor in TABLE[schedule]], abs=2e-4)


@given(st.floats(0, 1), st.floats(0, 0.99), st.sampled_from(SCHEDULES))
def test_the_factor_is_a_share(done, warmup, schedule):
    assert 0 <= schedule_factor(done, warmup=warmup, schedule=schedule) <= 1


@given(st.floats(0.01, 0.99), st.sampled_from(SCHEDULES))
def test_the_rate_peaks_where_the_warmup_ends(warmup, schedule):
    assert schedule_factor(warmup, warmup=warmup, schedule=schedule) == 1
    just_after = schedule_factor(warmup + 1e-9, warmup=warmup, schedule=schedule)
    assert just_after == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_a_warmup_it_starts_at_the_peak(schedule):
    assert schedule_factor(0.0, warmup=0.0, schedule=schedule) == 1


def test_every_parameter_is_optimized_once_and_only_matrices_decay():
    model = BertForPretraining(TINY)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, PretrainConfig(weight_decay=0.3))
    found = [
        (name_of[parameter], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    wanted = [(name, 0.3 * (p.ndim >= 2)) for name, p in model.named_parameters()]
    assert sorted(found) == sorted(wanted)


def test_the_choices_of_the_config_reach_the_optimizer():
    training = PretrainConfig(learning_rate=0.5, beta1=0.7, beta2=0.8)
    for group in build_optimizer(BertForPretraining(TINY), training).param_groups:
        assert (group["lr"], group["betas"]) == (0.5, (0.7, 0.8))


def test_decay_shrinks_matrices_and_leaves_vectors():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(1.0)
    optimizer = adamw(layer, learning_rate=0.5, weight_decay=0.1, betas=(0.9, 0.98))
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert layer.weight.tolist() == [[pytest.approx(0.95)] * 2] * 2  # 1 - 0.5 * 0.1
    assert layer.bias.tolist() == [1.0, 1.0]


def test_the_first_update_is_one_learning_rate_against_the_gradient():
    layer = nn.Linear(2, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizer = adamw(layer, learning_rate=0.25, weight_decay=0.0, betas=(0.9, 0.98))
    layer.weight.grad = torch.tensor([[3.0, -0.01]])
    optimizer.step()
    moved = before - layer.weight.detach()
    torch.testing.assert_close(moved, torch.tensor([[0.25, -0.25]]), atol=1e-4, rtol=0)


def test_a_frozen_parameter_is_left_out():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    optimizer = adamw(layer, learning_rate=0.1, weight_decay=0.1, betas=(0.9, 0.98))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]


def test_the_learning_rate_is_set_for_matrices_and_vectors():
    optimizer = build_optimizer(BertForPretraining(TINY), PretrainConfig())
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]
