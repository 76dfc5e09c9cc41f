"""AdamW; and Muon, which updates the matrices of the layers and leaves the rest to AdamW."""

import shutil
from dataclasses import replace

import pytest
import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.checkpoint import latest_checkpoint, load_moments
from clozeline.train.engine.muon import MOMENTUM, is_hidden_matrix, orthogonalized
from clozeline.train.engine.optim import build_optimizer, follow_schedule
from tests.support.command import output_of
from tests.support.small_training import (
    STILL,
    TINY,
    assert_same_run,
    command_line,
    go_back,
    preset_of,
    train,
)
from tests.support.training_configs import training_config

MUON = training_config(optimizer="muon", learning_rate=0.5, weight_decay=0.1)
MODERN = preset("modern-nano", vocab_size=64, num_hidden_layers=1)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_optimized_once_and_only_matrices_decay(optimizer):
    model = BertForPretraining(TINY)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    training = training_config(optimizer=optimizer, weight_decay=0.3)
    found = [
        (name_of[parameter], group["weight_decay"])
        for group in build_optimizer(model, training).param_groups
        for parameter in group["params"]
    ]
    wanted = [(name, 0.3 * (p.ndim >= 2)) for name, p in model.named_parameters()]
    assert sorted(found) == sorted(wanted)


def test_the_options_of_the_config_reach_the_optimizer_and_the_rate_follows_its_schedule():
    training = training_config(
        learning_rate=0.5, beta1=0.7, beta2=0.8, warmup=0.0, schedule="constant"
    )
    optimizer = build_optimizer(BertForPretraining(TINY), training)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.7, 0.8), 1e-6)
    follow_schedule(optimizer, replace(training, learning_rate=0.125), 1, 0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def updated(training):
    """The parameters after an update with random gradients, and the optimizer."""
    model = BertForPretraining(TINY)
    optimizer = build_optimizer(model, training)
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    optimizer.step()
    return dict(model.named_parameters()), optimizer


@pytest.mark.parametrize("config", [TINY, MODERN], ids=["bert", "modern"])
def test_muon_updates_only_the_matrices_of_the_layers(config):
    model = BertForPretraining(config)
    names = {name for name, p in model.named_parameters() if is_hidden_matrix(name, p)}
    assert names == {
        f"encoder.layers.0.{part}.weight"
        for part in ("attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down")
    }


def test_float32_gives_the_same_matrices_to_rounding():
    """For devices without products of bfloat16."""
    for shape in ((2, 48, 16), (1, 16, 16), (3, 16, 64)):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        exact, rounded = orthogonalized(matrices), orthogonalized(matrices.bfloat16())
        assert (exact.dtype, rounded.dtype) == (torch.float32, torch.bfloat16)
        torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0)
        values = torch.linalg.svdvals(exact)
        assert 0.6 < values.min() <= values.max() < 1.25


def test_the_rest_is_updated_as_adamw_alone_does():
    both, _ = updated(MUON)
    alone, _ = updated(training_config(learning_rate=0.5, weight_decay=0.1))
    same = {name for name in both if torch.equal(both[name], alone[name])}
    assert same == {name for name, p in both.items() if not is_hidden_matrix(name, p)}


def test_one_learning_rate_is_set_for_both():
    parameters, optimizer = updated(MUON)
    at = {name: p.detach().clone() for name, p in parameters.items()}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(p, at[name]) for name, p in parameters.items())


def test_matrices_of_one_shape_are_updated_together_as_torchs_muon_updates_each():
    """Two layers; torch's Muon takes one matrix at a time."""
    config = replace(TINY, num_hidden_layers=2)
    ours, theirs = BertForPretraining(config), BertForPretraining(config)
    hidden = [p for name, p in theirs.named_parameters() if is_hidden_matrix(name, p)]
    reference = torch.optim.Muon(
        hidden, lr=0.5, weight_decay=0.1, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
    )
    optimizer = build_optimizer(ours, MUON)
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=draw)
            q.grad = p.grad.clone()
        optimizer.step()
        reference.step()
    named = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if is_hidden_matrix(name, parameter):  # steps of 0.5, rounded to bfloat16
            torch.testing.assert_close(named[name], parameter, atol=2e-2, rtol=0, msg=name)


def test_it_resumes_bit_for_bit_with_its_momentum(small_folder, tmp_path):
    options = {"optimizer": "muon", "learning_rate": 2e-3, "weight_decay": 0.1}
    whole, model = tmp_path / "whole", preset_of(small_folder)
    train(small_folder, whole, model=model, **options)
    run = go_back(shutil.copytree(whole, tmp_path / "run"), 4)
    output_of(*command_line(small_folder, run, "--resume", **options))
    assert_same_run(run, whole)
    kinds = {name.rpartition("/")[2] for name in load_moments(latest_checkpoint(run))}
    assert kinds == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}


def test_another_optimizer_is_refused_on_resume(small_folder, tmp_path):
    train(small_folder, tmp_path, model=STILL, max_steps=4)
    with pytest.raises(ValueError, match="was trained with --optimizer adamw; give that one"):
        train(small_folder, tmp_path, model=STILL, optimizer="muon", resume=True)
