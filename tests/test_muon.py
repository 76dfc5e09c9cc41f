"""Muon updates the matrices of the layers, AdamW the rest, both with one learning rate."""

from dataclasses import replace

import pytest
import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.checkpoint import latest_checkpoint, load_moments
from clozeline.train.engine.muon import MOMENTUM, is_hidden_matrix, orthogonalized
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.schedule import momentum_at
from tests.support.command import output_of
from tests.support.small_training import (
    STILL,
    TINY,
    assert_same_run,
    command_line,
    go_back,
    preset_of,
    train,
    weights,
)
from tests.support.training_configs import training_config

MUON = training_config(optimizer="muon", learning_rate=0.5, weight_decay=0.1)
MODERN = preset("modern-nano", vocab_size=64, num_hidden_layers=1)


def updated(training):
    """A model before and after an update with the same gradients."""
    model = BertForPretraining(TINY)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, training)
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    optimizer.step()
    return before, dict(model.named_parameters()), optimizer


@pytest.mark.parametrize("config", [TINY, MODERN], ids=["bert", "modern"])
def test_muon_updates_only_the_matrices_of_the_layers(config):
    model = BertForPretraining(config)
    names = {name for name, p in model.named_parameters() if is_hidden_matrix(name, p)}
    assert names == {
        f"encoder.layers.0.{part}.weight"
        for part in ("attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down")
    }


def test_every_parameter_is_optimized_once():
    _, named, optimizer = updated(MUON)
    found = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in named.values())


def test_the_step_of_a_matrix_is_nearly_orthogonal_and_as_large_as_adamws():
    before, after, _ = updated(MUON)
    for name, parameter in after.items():
        if is_hidden_matrix(name, parameter):
            step = (before[name] * (1 - 0.5 * 0.1) - parameter.detach()) / 0.5
            size = 0.2 * max(step.shape) ** 0.5  # so its root mean square is about 0.2
            values = torch.linalg.svdvals(step / size)
            assert 0.4 < values.min() <= values.max() < 1.4, name


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
    _, both, _ = updated(MUON)
    _, alone, _ = updated(training_config(learning_rate=0.5, weight_decay=0.1))
    same = {name for name in both if torch.equal(both[name], alone[name])}
    assert same == {name for name, p in both.items() if not is_hidden_matrix(name, p)}


def test_one_learning_rate_is_set_for_both():
    _, _, optimizer = updated(MUON)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    at = [p.detach().clone() for p in parameters]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(parameters, at, strict=True))


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


def test_it_resumes_bit_for_bit(small_folder, tmp_path):
    options = {"optimizer": "muon", "learning_rate": 2e-3, "weight_decay": 0.1}
    whole, run = tmp_path / "whole", tmp_path / "run"
    for out in (whole, run):
        train(small_folder, out, **options)
    train(small_folder, go_back(run, 4), resume=True, **options)
    assert_same_run(run, whole)
    kinds = {name.rpartition("/")[2] for name in load_moments(latest_checkpoint(run))}
    assert kinds == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}


def test_the_momentum_rises_and_a_resumed_run_keeps_that(small_folder, tmp_path):
    config = training_config(optimizer="muon", max_steps=12, muon_warmup=0.5)
    found = [momentum_at(config, step) for step in range(1, 13)]
    rising = [0.85 + 0.1 * (step - 0.5) / 6 for step in range(1, 7)]
    assert found == pytest.approx([*rising, *[MOMENTUM] * 6])
    assert {momentum_at(replace(config, muon_warmup=0.0), step) for step in (1, 12)} == {MOMENTUM}
    options = {"model": preset_of(small_folder), "optimizer": "muon", "learning_rate": 2e-3}
    plain, whole, run = (tmp_path / name for name in ("plain", "whole", "run"))
    train(small_folder, plain, **options)
    for out in (whole, run):
        train(small_folder, out, muon_warmup=0.5, **options)
    assert weights(plain) != weights(whole)
    line = command_line(small_folder, go_back(run, 4), "--resume", "--optimizer=muon")
    line = [word for word in line if not word.startswith("--muon-warmup")]
    output_of(*line, "--learning-rate=2e-3")
    assert_same_run(run, whole)


def test_another_optimizer_is_refused_on_resume(small_folder, tmp_path):
    train(small_folder, tmp_path, model=STILL, max_steps=4)
    with pytest.raises(ValueError, match="has the moments of --optimizer adamw; give that one"):
        train(small_folder, tmp_path, model=STILL, optimizer="muon", resume=True)
