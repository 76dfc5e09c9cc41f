"""Which parameters are optimized, and which of them decay."""

import pytest
import torch
from torch import nn

from clozeline.model.heads import BertForPretraining
from clozeline.train.engine.optim import build_optimizer, follow_schedule
from tests.support.small_training import TINY
from tests.support.training_configs import training_config


def test_every_parameter_is_optimized_once_and_only_matrices_decay():
    model = BertForPretraining(TINY)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, training_config(weight_decay=0.3))
    found = [
        (name_of[parameter], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    wanted = [(name, 0.3 * (p.ndim >= 2)) for name, p in model.named_parameters()]
    assert sorted(found) == sorted(wanted)


def test_the_options_of_the_config_reach_the_optimizer():
    training = training_config(learning_rate=0.5, beta1=0.7, beta2=0.8)
    for group in build_optimizer(BertForPretraining(TINY), training).param_groups:
        assert (group["lr"], group["betas"]) == (0.5, (0.7, 0.8))


def test_decay_shrinks_matrices_and_leaves_vectors():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(1.0)
    optimizer = build_optimizer(layer, training_config(learning_rate=0.5, weight_decay=0.1))
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert layer.weight.tolist() == [[pytest.approx(0.95)] * 2] * 2  # 1 - 0.5 * 0.1
    assert layer.bias.tolist() == [1.0, 1.0]


def test_the_first_update_is_one_learning_rate_against_the_gradient():
    layer = nn.Linear(2, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(layer, training_config(learning_rate=0.25, weight_decay=0.0))
    layer.weight.grad = torch.tensor([[3.0, -0.01]])
    optimizer.step()
    moved = before - layer.weight.detach()
    torch.testing.assert_close(moved, torch.tensor([[0.25, -0.25]]), atol=1e-4, rtol=0)


def test_the_learning_rate_is_set_for_matrices_and_vectors():
    training = training_config(learning_rate=0.125, warmup=0.0, schedule="constant")
    optimizer = build_optimizer(BertForPretraining(TINY), training_config(learning_rate=0.5))
    follow_schedule(optimizer, training, 1, 0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]
