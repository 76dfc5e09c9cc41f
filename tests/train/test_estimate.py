"""What a run will need, from the real step on tensors without memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig
from clozeline.train.engine.distributed import World
from clozeline.train.engine.flops import GPUS, gpu_named
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import autocast
from clozeline.train.estimate.estimate import UTILIZATION, Estimate
from clozeline.train.estimate.step_cost import (
    Memory,
    WithoutDevice,
    backward,
    longest_batch,
    step_cost,
)
from clozeline.train.pretraining.step import WordSampler, forward_losses, train_step
from tests.support.command import invoke, output_of
from tests.support.small_models import gradients
from tests.support.step_forms import FORMS
from tests.support.training_configs import training_config
from tests.train.test_flops import LENGTH, ROWS, counted_flops

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
#: The others differ from these in nothing that asks for the device.
ON_CUDA = {
    *("full", "accumulation", "packed", "checkpointed"),
    *("sampled untied", "sampled fp32", "modern unpadded"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_walk_over_the_graph_gives_autograds_gradients(name):
    form = FORMS[name]
    [part, *_] = form.loaded.batch.split(form.accumulation)

    def found(run):
        torch.manual_seed(0)
        model = form.model()
        with autocast(form.precision, CPU):
            losses, _ = forward_losses(
                model, part, is_full=form.is_full, count_hits=False, sample=form.sample(CPU)
            )
        run(losses.sum())
        return gradients(model)

    torch.testing.assert_close(found(backward), found(torch.Tensor.backward))


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    "name", [x if x in ON_CUDA else pytest.param(x, marks=pytest.mark.slow) for x in FORMS]
)
def test_a_step_of_every_form_runs_on_pretended_gpus(name):
    """CUDA's branches, dtypes and kernels, without CUDA; mixing devices is an error."""
    form = FORMS[name]
    loaded = form.loaded
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, WithoutDevice():
        with CUDA:
            model = form.model()
        if form.is_checkpointed:
            for layer in model.encoder.layers:
                layer._forward = autocast(form.precision, CUDA)(layer._forward)
        loaded = loaded.to(CUDA)
        assert all(fake is x.fake_mode for x in loaded.batch.tensors().values())
        seen = {}
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        optimizer.register_step_pre_hook(lambda *_: seen.update(gradients(model)))
        how = {"accumulation": form.accumulation, "precision": form.precision, "clip": 1.0}
        world, sample = World(0, 1, CUDA), form.sample(CUDA)
        sums, norm = train_step(model, optimizer, loaded, world=world, sample=sample, **how)
    assert {sums.device, norm.device} == {CUDA}
    assert {n: (g.shape, g.dtype, g.device) for n, g in seen.items()} == {
        n: (p.shape, p.dtype, p.device) for n, p in model.named_parameters()
    }


@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_operations_of_a_step_are_those_that_torch_counts(passes):
    config = preset("bert-tiny", vocab_size=100, attention_probs_dropout_prob=0.1)
    data = DataConfig(max_seq_length=LENGTH, max_predictions_per_seq=7)
    split = {"rows": ROWS // passes, "passes": passes}
    cost = step_cost(config, training_config(), data, **split, device=CPU)
    assert cost.pass_flops * passes == counted_flops(config, passes)
    assert cost.optimizer_flops == 0


def test_gpus_are_found_by_any_spelling():
    for gpu in GPUS:
        assert gpu_named(gpu.name.lower()) is gpu_named(gpu.name.replace(" ", "")) is gpu


@pytest.mark.parametrize(
    ("name", "length", "predictions", "rows", "measured"),
    [
        ("nano", 64, 10, 4096, 20.0),
        pytest.param("bert-base", 128, 20, 512, 96.4, marks=pytest.mark.slow),
        pytest.param("modern-small", 64, 20, 1024, 20.5, marks=pytest.mark.slow),
    ],
)
def test_guesses_are_what_an_h200_took(name, length, predictions, rows, measured):
    """Milliseconds of a compiled step (docs/manual/results.md); an eager step moves more."""
    model = preset(name, vocab_size=16384 if name == "modern-small" else 30522)
    training = training_config(batch_size=rows, micro_batch_size=rows, precision="bf16")
    data = DataConfig(max_seq_length=length, max_predictions_per_seq=predictions)
    how = {"gpu": gpu_named("h200"), "gpus": 1, "model": model, "data": data}
    compiled = Estimate(training=training, **how)
    assert 1e3 * compiled.seconds(utilization=UTILIZATION) == pytest.approx(measured, rel=0.1)
    eager = Estimate(training=replace(training, compile=False), **how)
    assert eager.seconds(utilization=1.0) > 1.3 * compiled.seconds(utilization=1.0)


def test_with_fsdp_machines_send_each_other_the_gradients_of_shards_alone():
    model, data = preset("bert-tiny", vocab_size=500), DataConfig(max_seq_length=32)
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in BertForPretraining(model).parameters())

    def sent(gpus, parallel):
        training = training_config(batch_size=8 * gpus, micro_batch_size=8, parallel=parallel)
        how = {"gpu": gpu_named("h200"), "model": model, "training": training, "data": data}
        return Estimate(gpus=gpus, **how).sent

    (inside, none), (same, between) = sent(8, "fsdp"), sent(16, "fsdp")
    assert (same, none, between) == (inside, 0, parameters * 8 / 8 / 2)
    assert sent(8, "ddp") == (parameters * 8 * 7 / 8, 0)
    assert sent(16, "ddp") == (0, parameters * 8 * 15 / 16)


# --- the command


@pytest.fixture
def line(small_folder):
    return "estimate", small_folder, "--preset=bert-tiny", "--set=num_hidden_layers=1"


def test_an_estimate_prints_a_table_and_writes_nothing(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = output_of(
        *line, "--gpu=a100,rtx4090", "--gpus=1,8", "--price-per-hour=2",
        "--max-steps=100000000", "--batch-size=16", "--micro-batch-size=2",
    )  # fmt: skip
    rows = [line.split() for line in printed.splitlines()[2:6]]
    assert [row[0] for row in rows] == ["A100", "A100", "RTX", "RTX"]
    assert [row[-12:-9] for row in rows] == [["16", "2", "8"], ["16", "2", "1"]] * 2
    assert all(float(row[-1].replace(",", "")) > 0 for row in rows)
    assert "guessed" in printed
    assert not list(tmp_path.iterdir())


def test_an_estimate_wants_no_shards():
    done = invoke("estimate", "--preset=bert-tiny", "--batch-size=16", "--max-steps=10")
    assert done.stdout.startswith("model      4,433,468 parameters, examples of 128 tokens\n")
    assert done.stderr.startswith("note: without SHARDS, 30,522 tokens in the vocabulary and ")


def test_a_time_budget_gives_the_steps_and_steps_the_time(line):
    def last(*options):
        printed = output_of(*line, "--batch-size=16", "--micro-batch-size=16", *options)
        return [float(x.replace(",", "")) for x in printed.splitlines()[2].split()[-3:-1]]

    steps, hours = last("--for=100h")
    assert hours == 100
    assert last(f"--max-steps={steps:.0f}") == [steps, 100]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--gpu=tpu"], "unknown GPU 'tpu'"),
        (["--gpus=0"], "--gpus '0'"),
        (["--gpus=two"], "--gpus 'two'"),
        (["--gpus=3", "--batch-size=8"], "--batch-size 8 cannot be divided among 3"),
        (["--batch-size=8", "--micro-batch-size=3"], "by --micro-batch-size 3; use"),
        (["--price-per-hour=-1"], "--price-per-hour"),
        (["--price-per-hour=nan"], "--price-per-hour is nan; give a finite number"),
        (["--phase=work/64@0.5"], "No such option '--phase'"),
        (("--schedule", "cool-down"), "--schedule cool-down continues a run; estimate that run"),
    ],
)
def test_bad_values_are_refused_in_one_line(options, reason, line):
    assert reason in output_of(*line, *options, code=2).splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "passes", "above"),
    [
        ({}, 1, 1.0),
        ({"optimizer": "muon", "precision": "bf16"}, 2, 1.0),
        ({"sampled_words": 100, "precision": "bf16", "unpadded": True}, 1, 1.0),
        ({"activation_checkpointing": True}, 1, 1.05),  # layers' inputs live a little longer
    ],
)
def test_the_walk_needs_the_memory_that_autograd_does(changes, passes, above):
    """The same tensors, counted in a real step with autograd's own backward pass."""
    config, data = preset("bert-tiny", vocab_size=500), DataConfig(max_seq_length=32)
    training = training_config(batch_size=16, **changes)
    found = step_cost(config, training, data, rows=16 // passes, passes=passes, device=CPU).peak
    real = longest_batch(16, data, unpadded=training.unpadded)
    sample = WordSampler(np.ones(config.vocab_size), training.sampled_words, seed=0).at(1)
    how = {"accumulation": passes, "precision": training.precision, "clip": 1.0, "sample": sample}
    with Memory() as memory:
        model = BertForPretraining(config, seed=0).train()
        if training.activation_checkpointing:
            model.encoder.checkpoint_activations()
        optimizer = build_optimizer(model, training)
        tensors = {name: value.clone() for name, value in real.batch.tensors().items()}
        loaded = replace(real, batch=replace(real.batch, **tensors))
        for _ in range(2):
            train_step(model, optimizer, loaded, world=World(0, 1, CPU), **how)
    wanted = memory.fullest
    assert 0.999 * wanted < found < 1.001 * above * wanted
