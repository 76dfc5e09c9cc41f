"""What a run will need, from the real step on tensors without memory."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.data.phases import DataPhase
from clozeline.train.engine.distributed import World
from clozeline.train.engine.gpus import GPUS, gpu_named
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import autocast
from clozeline.train.pretraining import estimate
from clozeline.train.pretraining.estimate import Estimate
from clozeline.train.pretraining.fake_step import Memory, WithoutDevice, backward, step_cost
from clozeline.train.pretraining.micro_batch import longest_batch
from clozeline.train.pretraining.step import forward_losses, train_step
from clozeline.train.pretraining.word_sampler import WordSampler
from tests.benchmarks.estimate_memory import measured_peak, predicted
from tests.support.command import output_of
from tests.support.small_models import gradients
from tests.support.step_forms import FORMS
from tests.support.training_configs import training_config
from tests.train.test_flops import LENGTH, ROWS, counted_flops

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
#: The others differ from these in nothing that asks for the device.
ON_CUDA = {
    *("full", "accumulation", "packed", "checkpointed", "bf16 residual"),
    *("sampled untied", "sampled fp32", "modern unpadded"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_walk_over_the_graph_gives_autograds_gradients(name):
    form = FORMS[name]
    [part, *_] = form.loaded.batch.split(form.accumulation)

    def found(run):
        torch.manual_seed(0)
        model = form.model(form.precision)
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
            model = form.model(form.precision)
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


@pytest.mark.slow
def test_a_steps_memory_has_its_weights_gradients_and_moments():
    config, data = preset("bert-tiny", vocab_size=64), DataConfig(max_seq_length=16)
    how = {"rows": 64, "passes": 2, "device": CUDA}
    adamw, muon = (
        step_cost(config, training_config(optimizer=name), data, **how).parts
        for name in ("adamw", "muon")
    )
    assert adamw["weights"] == muon["weights"]
    assert adamw["gradients"] <= adamw["weights"]
    assert adamw["optimizer"] == pytest.approx(2 * adamw["weights"], rel=1e-3)
    assert adamw["weights"] < muon["optimizer"] < adamw["optimizer"]  # one moment of a matrix


def test_gpus_are_found_by_any_spelling():
    for gpu in GPUS:
        assert gpu_named(gpu.name.lower()) is gpu_named(gpu.name.replace(" ", "")) is gpu


def phase(start, *, length=32, factor=1, predictions=5):
    return DataPhase(
        start=start,
        shards="",
        dataset_digest=str(length),
        max_seq_length=length,
        batch_factor=factor,
        masked_lm_prob=None,
        max_predictions=predictions,
    )


def estimate_of(shards, model, training, *phases):
    manifest = replace(read_manifest(shards), config=DataConfig())
    how = {"model": model, "training": training, "manifest": manifest, "phases": phases}
    return Estimate(gpu=gpu_named("h200"), gpus=1, **how)


def test_an_estimate_has_the_memory_of_the_fullest_phase_and_the_mean_operations(small_folder):
    """Of steps as the run makes them: shorter examples, more of them, and other masks."""
    config = preset("bert-tiny", vocab_size=500)
    training = training_config(batch_size=8, micro_batch_size=4)
    phases = phase(0, length=16, factor=2, predictions=12), phase(0.5), phase(0.75, predictions=9)
    found = estimate_of(small_folder, config, training, *phases)
    own = [
        step_cost(
            config,
            training,
            DataConfig(max_seq_length=x.max_seq_length, max_predictions_per_seq=x.max_predictions),
            rows=4 * x.batch_factor,
            passes=2,
            device=CUDA,
        )
        for x in phases
    ]
    assert found.cost.peak == max(cost.peak for cost in own) > own[1].peak
    mean = sum(x * cost.pass_flops for x, cost in zip((0.5, 0.25, 0.25), own, strict=True))
    assert found.cost.pass_flops == pytest.approx(mean)
    assert found.slots == 8 * 32
    assert replace(found, phases=(phase(0),)).cost.pass_flops == own[1].pass_flops


@pytest.mark.parametrize(
    ("name", "length", "predictions", "rows", "measured"),
    [
        ("nano", 64, 10, 4096, 20.0),
        pytest.param("bert-base", 128, 20, 512, 96.4, marks=pytest.mark.slow),
        pytest.param("modern-small", 64, 20, 1024, 20.5, marks=pytest.mark.slow),
    ],
)
def test_guesses_are_what_an_h200_took(name, length, predictions, rows, measured, small_folder):
    """Milliseconds of a compiled step (docs/manual/results.md); an eager step moves more."""
    model = preset(name, vocab_size=16384 if name == "modern-small" else 30522)
    training = training_config(batch_size=rows, micro_batch_size=rows, precision="bf16")
    only = phase(0, length=length, predictions=predictions)
    found = estimate_of(small_folder, model, training, only)
    assert 1e3 * found.guessed == pytest.approx(measured, rel=0.1)
    eager = replace(found, training=replace(training, compile=False))
    assert eager.at_best > 1.3 * found.at_best


# --- the command


@pytest.fixture
def line(small_folder, tmp_path, monkeypatch):
    """`pretrain` on a small data set, whose loader is measured in no time."""
    monkeypatch.setattr(estimate, "EXAMPLES_READ", 100)
    return "pretrain", small_folder, "--out", tmp_path / "run", "--preset=bert-tiny"


def test_a_higher_masking_rate_costs_speed(line):
    """And is not what was counted before for the same model."""

    def tokens_per_second(*options):
        sizes = ("--batch-size=64", "--micro-batch-size=64")
        printed = output_of(*line, "--estimate", *sizes, *options)
        return int(printed.splitlines()[2].split()[9].replace(",", ""))

    assert tokens_per_second() > tokens_per_second("--masked-lm-prob=0.9:0.15")


def test_an_estimate_prints_a_table_and_writes_nothing(line, tmp_path):
    printed = output_of(
        *line, "--estimate", "--gpu=a100,rtx4090", "--gpus=1,8", "--price-per-hour=2",
        "--max-steps=100000000", "--batch-size=16", "--micro-batch-size=2",
    )  # fmt: skip
    rows = [line.split() for line in printed.splitlines()[2:6]]
    assert [row[0] for row in rows] == ["A100", "A100", "RTX", "RTX"]
    assert [row[-12:-9] for row in rows] == [["16", "2", "8"], ["16", "2", "1"]] * 2
    assert all(float(row[-1].replace(",", "")) > 0 for row in rows)
    assert "guessed" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("end", "steps", "hours"),
    [
        # The batches of the ramp are an eighth, a quarter and half as large as the others.
        (["--max-steps=100000000000"], 1.0, 0.5 + 0.5 * (1 / 8 + 1 / 4 + 1 / 2) / 3),
        (["--for=1000h"], 0.5 + 0.5 * (8 + 4 + 2) / 3, 1.0),
    ],
)
def test_the_smaller_batches_of_a_ramp_take_less_time(line, end, steps, hours):
    def last(*options):
        printed = output_of(*line, "--estimate", "--batch-size=16", *end, *options)
        return [float(x.replace(",", "")) for x in printed.splitlines()[2].split()[-3:-1]]

    whole, ramp = last(), last("--batch-ramp=0.5")
    assert ramp[0] / whole[0] == pytest.approx(steps, rel=1e-3)
    assert ramp[1] / whole[1] == pytest.approx(hours, rel=1e-2)


def test_sharded_memory_has_a_line_for_each_number_of_gpus(line):
    options = ["--gpus=2,4", "--parallel=fsdp", "--preset=bert-medium", "--micro-batch-size=1"]
    printed = output_of(*line, "--estimate", *options, "--batch-size=8")
    weights = dict(re.findall(r"micro-batch 1 on (\d) GPUs: weights ([\d.]+)", printed))
    assert set(weights) == {"2", "4"}
    few, many = float(weights["2"]), float(weights["4"])
    assert few == pytest.approx(2 * many, abs=0.011)
    assert many > 0.02


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--estimate", "--gpu=tpu"], "unknown GPU 'tpu'"),
        (["--estimate", "--gpus=0"], "--gpus '0'"),
        (["--estimate", "--gpus=two"], "--gpus 'two'"),
        (["--estimate", "--gpus=3", "--batch-size=8"], "--batch-size 8 cannot be divided among 3"),
        (["--estimate", "--batch-size=8", "--micro-batch-size=3"], "by --micro-batch-size 3; use"),
        (["--estimate", "--price-per-hour=-1"], "--price-per-hour"),
        (["--estimate", "--price-per-hour=nan"], "--price-per-hour is nan; give a finite number"),
        (
            ["--estimate", "--muon-warmup=0.1"],
            "--muon-warmup is for optimizer muon",
        ),  # found with the plan
        (["--gpus=8"], "--gpus belongs to --estimate"),
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
    real = longest_batch(16, config, data, unpadded=training.unpadded)
    sample = WordSampler(np.ones(config.vocab_size), training.sampled_words, seed=0).at(1)
    how = {"accumulation": passes, "precision": training.precision, "clip": 1.0, "sample": sample}
    with Memory(config.padded_vocab_size) as memory:
        model = BertForPretraining(config, seed=0).train()
        if training.activation_checkpointing:
            model.encoder.checkpoint_activations()
        optimizer = build_optimizer(model, training)
        tensors = {name: value.clone() for name, value in real.batch.tensors().items()}
        loaded = replace(real, batch=replace(real.batch, **tensors))
        for _ in range(2):
            train_step(model, optimizer, loaded, world=World(0, 1, CPU), **how)
    wanted = memory.fullest.total()
    assert 0.999 * wanted < found < 1.001 * above * wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano", "bert-mini", "bert-small", "modern-mini"])
def test_predicted_memory_is_that_of_the_process(name):
    """Some 15 to 20 MB of the process, by its processor, are no tensors of the step."""
    assert predicted(name).peak == pytest.approx(measured_peak(name), rel=0.05, abs=24e6)
