"""The optimizers, and the schedule of their rate: what is updated, by how much and until when."""

import os
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.config import preset
from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import (
    MOMENTUM,
    build_optimizer,
    follow_schedule,
    is_hidden_matrix,
    new_optimizer,
    orthogonalized,
)
from clozeline.train.engine.schedule import (
    first_step_from,
    is_over,
    learning_rate_at,
    progress,
    schedule_factor,
)
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import BETAS
from clozeline.train.pretraining.stop_and_budget import SIGNALS, StopAndBudget
from tests.support.small_runs import training_config
from tests.support.small_training import TINY

MUON = training_config(optimizer="muon", learning_rate=0.5, weight_decay=0.1)
MODERN = preset("modern-nano", vocab_size=64, num_hidden_layers=1)


def optimizer_of(model, **values):
    """Of pretraining, or of fine-tuning for a classifier."""
    if isinstance(model, BertForPretraining):
        return build_optimizer(model, training_config(**values))
    values = vars(FinetuneConfig(**values))
    how = {"decay": values["weight_decay"], "betas": BETAS, "dtype": torch.float32}
    return new_optimizer(model, values["optimizer"], **how)


MODELS = pytest.mark.parametrize(
    "make", [BertForPretraining, partial(BertForClassification, num_labels=2, pooling="mean")]
)


@MODELS
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_optimized_once_and_only_matrices_decay(optimizer, make):
    model = make(TINY)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    groups = optimizer_of(model, optimizer=optimizer, weight_decay=0.3).param_groups
    found = [
        (name_of[parameter], group["weight_decay"])
        for group in groups
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


def updated(make, **values):
    """The parameters after an update with random gradients at a rate of 0.5."""
    model = make(TINY)
    optimizer = optimizer_of(model, weight_decay=0.1, **values)
    draw = torch.Generator().manual_seed(0)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    optimizer.step()
    return dict(model.named_parameters())


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


@MODELS
def test_the_rest_is_updated_as_adamw_alone_does(make):
    both, alone = updated(make, optimizer="muon"), updated(make, optimizer="adamw")
    same = {name for name in both if torch.equal(both[name], alone[name])}
    assert same == {name for name, p in both.items() if not is_hidden_matrix(name, p)}


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


# --- The schedule as a table: the learning rate at each step --------------------------------------
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
def test_the_factor_is_between_0_and_1_which_it_is_where_the_warmup_ends(done, warmup, schedule):
    assert 0 <= schedule_factor(done, warmup=warmup, schedule=schedule) <= 1
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


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_is_a_request_inside_the_context_and_handlers_are_restored(kind):
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopAndBudget(ALONE) as control:
        os.kill(os.getpid(), kind)
        assert not control.is_stopped  # the step goes on
        control.after_step()
        assert control.is_stopped
    assert [signal.getsignal(each) for each in SIGNALS] == before


@given(st.integers(1, 300), st.integers(0, 100).map(lambda n: n / 100))
def test_a_part_begins_with_the_first_step_that_has_reached_its_start(steps, start):
    config = training_config(max_steps=steps)
    reached = [n for n in range(1, steps + 1) if progress(config, n, 0.0) >= start]
    assert first_step_from(config, start) == min(reached, default=steps + 1)
