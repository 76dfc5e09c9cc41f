"""What a run will need, from the real step on tensors without memory."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch._subclasses.fake_tensor import FakeTensorMode

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.cli import main
from clozeline.train.data.phases import DataPhase
from clozeline.train.engine.distributed import World
from clozeline.train.engine.gpus import GPUS, gpu_named
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import autocast
from clozeline.train.pretraining.estimate import Estimate
from clozeline.train.pretraining.fake_step import Memory, WithoutDevice, backward, step_cost
from clozeline.train.pretraining.micro_batch import longest_batch
from clozeline.train.pretraining.step import forward_losses, train_step
from clozeline.train.pretraining.word_sampler import WordSampler
from tests.benchmarks.estimate_memory import measured_peak, predicted
from tests.support.small_models import gradients
from tests.support.small_training import preset_of, train
from tests.support.step_forms import FORMS
from tests.support.training_configs import training_config
from tests.test_flops import LENGTH, ROWS, counted_flops

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


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
@pytest.mark.parametrize("name", FORMS)
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
        sums, norm = train_step(
            model,
            optimizer,
            loaded,
            world=World(0, 1, CUDA),
            accumulation=form.accumulation,
            precision=form.precision,
            clip=1.0,
            sample=form.sample(CUDA),
        )
    assert {sums.device, norm.device} == {CUDA}
    assert {n: (g.shape, g.dtype, g.device) for n, g in seen.items()} == {
        n: (p.shape, p.dtype, p.device) for n, p in model.named_parameters()
    }


@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_operations_of_a_step_are_those_that_torch_counts(passes):
    config = preset("bert-tiny", vocab_size=100, attention_probs_dropout_prob=0.1)
    data = DataConfig(max_seq_length=LENGTH, max_predictions_per_seq=7)
    cost = step_cost(
        config, training_config(), data, rows=ROWS // passes, passes=passes, device=CPU
    )
    assert cost.pass_flops * passes == counted_flops(config, passes)
    assert cost.optimizer_flops == 0


@pytest.mark.slow
def test_a_steps_memory_has_its_weights_gradients_and_moments():
    config, data = preset("bert-tiny", vocab_size=64), DataConfig(max_seq_length=16)
    adamw, muon = (
        step_cost(
            config, training_config(optimizer=name), data, rows=64, passes=2, device=CUDA
        ).parts
        for name in ("adamw", "muon")
    )
    assert adamw["weights"] == muon["weights"]
    assert adamw["gradients"] <= adamw["weights"]
    assert adamw["optimizer"] == pytest.approx(2 * adamw["weights"], rel=1e-3)
    assert adamw["weights"] < muon["optimizer"] < adamw["optimizer"]  # one moment of a matrix


@pytest.mark.slow
def test_a_larger_pass_needs_more_memory_and_checkpointing_less():
    config, data = preset("bert-mini", vocab_size=64), DataConfig(max_seq_length=64)
    few, many, less = (
        step_cost(config, training_config(**changes), data, rows=rows, passes=1, device=CUDA).peak
        for rows, changes in ((8, {}), (64, {}), (64, {"activation_checkpointing": True}))
    )
    assert few < less < many


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_gpus_are_found_by_any_spelling(gpu):
    assert gpu_named(gpu.name.lower()) is gpu_named(gpu.name.replace(" ", "")) is gpu


def run(shards, out, *options):
    line = ["pretrain", str(shards), f"--out={out}", "--preset=bert-tiny", *options]
    return CliRunner().invoke(main, line)


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


@pytest.mark.parametrize("rows", [8, 4])
def test_an_estimate_has_the_memory_of_the_fullest_phase_and_the_mean_operations(
    rows, small_folder
):
    """Of steps as the run makes them: shorter examples, more of them, and other masks."""
    config, data = preset("bert-tiny", vocab_size=500), DataConfig(max_seq_length=32)
    manifest = replace(read_manifest(small_folder), config=data)
    training = training_config(batch_size=8, micro_batch_size=rows)
    phases = [phase(0, length=16, factor=2, predictions=12), phase(0.5), phase(0.75, predictions=9)]
    found = Estimate(
        gpu=GPUS[0],
        gpus=1,
        model=config,
        training=training,
        manifest=manifest,
        phases=tuple(phases),
    )
    own = [
        step_cost(
            config,
            training,
            DataConfig(max_seq_length=length, max_predictions_per_seq=masks),
            rows=factor * rows,
            passes=8 // rows,
            device=CUDA,
        )
        for length, masks, factor in ((16, 12, 2), (32, 5, 1), (32, 9, 1))
    ]
    assert found.cost.peak == max(cost.peak for cost in own) > own[1].peak
    mean = sum(x * cost.pass_flops for x, cost in zip((0.5, 0.25, 0.25), own, strict=True))
    assert found.cost.pass_flops == pytest.approx(mean)
    assert found.slots == 8 * 32
    alone = replace(found, phases=(phase(0),))
    assert alone.cost.pass_flops == own[1].pass_flops


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
    data = DataConfig(max_seq_length=length, max_predictions_per_seq=predictions)
    vocab_size = 16384 if name == "modern-small" else 30522
    found = Estimate(
        gpu=gpu_named("h200"),
        gpus=1,
        model=preset(name, vocab_size=vocab_size),
        training=training_config(batch_size=rows, micro_batch_size=rows, precision="bf16"),
        manifest=replace(read_manifest(small_folder), config=data),
        phases=(phase(0, length=length, predictions=predictions),),
    )
    assert 1e3 * found.guessed == pytest.approx(measured, rel=0.1)
    eager = replace(found, training=replace(found.training, compile=False))
    assert eager.at_best > 1.3 * found.at_best


def test_a_higher_masking_rate_costs_speed(small_folder, tmp_path):
    """And is not what was counted before for the same model."""

    def printed(*options):
        line = ["--estimate", "--batch-size=64", "--micro-batch-size=64", *options]
        done = run(small_folder, tmp_path / "run", *line)
        assert done.exit_code == 0, done.output
        return int(done.output.splitlines()[2].split()[9].replace(",", ""))

    most, least = printed(), printed("--masked-lm-prob=0.9")
    assert least < printed("--masked-lm-prob=0.9:0.15") < most


def test_an_estimate_prints_a_table_and_writes_nothing(small_folder, tmp_path):
    done = run(
        small_folder, tmp_path / "run", "--estimate", "--gpu=a100,rtx4090", "--gpus=1,8",
        "--price-per-hour=2", "--max-steps=100000000", "--batch-size=16", "--micro-batch-size=2",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()[2:6]]
    assert [row[0] for row in rows] == ["A100", "A100", "RTX", "RTX"]
    assert [row[-12:-9] for row in rows] == [["16", "2", "8"], ["16", "2", "1"]] * 2
    assert all(float(row[-1].replace(",", "")) > 0 for row in rows)
    assert "guessed" in done.output
    assert not list(tmp_path.iterdir())


def test_sharded_memory_has_a_line_for_each_number_of_gpus(small_folder, tmp_path):
    options = ["--gpus=2,4", "--parallel=fsdp", "--preset=bert-base", "--micro-batch-size=1"]
    done = run(small_folder, tmp_path / "run", "--estimate", *options, "--batch-size=8")
    assert done.exit_code == 0, done.output
    weights = dict(re.findall(r"micro-batch 1 on (\d) GPUs: weights ([\d.]+)", done.output))
    assert set(weights) == {"2", "4"}
    few, many = float(weights["2"]), float(weights["4"])
    assert few == pytest.approx(2 * many, abs=0.011)
    assert many > 0.05


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--estimate", "--gpu=tpu"], "unknown GPU 'tpu'"),
        (["--estimate", "--gpus=0"], "--gpus '0'"),
        (["--estimate", "--gpus=two"], "--gpus 'two'"),
        (["--estimate", "--gpus=3", "--batch-size=8"], "--batch-size 8 cannot be divided among 3"),
        (["--estimate", "--batch-size=8", "--micro-batch-size=3"], "by --micro-batch-size 3; use"),
        (["--estimate", "--price-per-hour=-1"], "--price-per-hour"),
        (["--gpus=8"], "--gpus belongs to --estimate"),
    ],
)
def test_bad_values_are_refused_in_one_line(options, reason, small_folder, tmp_path):
    done = run(small_folder, tmp_path / "run", *options)
    assert done.exit_code == 2
    [line] = [line for line in done.output.splitlines() if line.startswith("Error")] or [
        str(done.exception)
    ]
    assert reason in line or reason in str(done.exception)


def test_what_only_the_plan_shows_is_refused_in_one_line(small_folder, tmp_path):
    """The optimizer is that of the other run."""
    there = tmp_path / "there"
    train(small_folder, there, model=preset_of(small_folder), max_steps=1, optimizer="adamw")
    line = ["pretrain", str(small_folder), f"--out={tmp_path / 'run'}", "--start-from", str(there)]
    done = CliRunner().invoke(main, [*line, "--estimate", "--muon-warmup=0.1"])
    assert done.exit_code == 2
    assert "Error: --muon-warmup is for optimizer muon" in done.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "passes", "above"),
    [
        ({}, 1, 1.0),
        ({"unpadded": True}, 1, 1.0),
        ({"optimizer": "muon", "precision": "bf16"}, 2, 1.0),
        ({"sampled_words": 100, "precision": "bf16"}, 1, 1.0),
        ({"activation_checkpointing": True}, 1, 1.05),  # layers' inputs live a little longer
    ],
)
def test_the_walk_needs_the_memory_that_autograd_does(changes, passes, above):
    """The same tensors, counted in a real step with autograd's own backward pass."""
    config, data = preset("bert-tiny", vocab_size=500), DataConfig(max_seq_length=32)
    training = training_config(batch_size=16, **changes)
    found = step_cost(config, training, data, rows=16 // passes, passes=passes, device=CPU).peak
    real = longest_batch(16, config, data, unpadded=training.unpadded)
    sampler = WordSampler(np.ones(config.vocab_size), training.sampled_words, seed=0)
    with Memory(config.padded_vocab_size) as memory:
        model = BertForPretraining(config, seed=0).train()
        if training.activation_checkpointing:
            model.encoder.checkpoint_activations()
        optimizer = build_optimizer(model, training)
        tensors = {name: value.clone() for name, value in real.batch.tensors().items()}
        loaded = replace(real, batch=replace(real.batch, **tensors))
        for _ in range(2):
            train_step(
                model,
                optimizer,
                loaded,
                world=World(0, 1, CPU),
                accumulation=passes,
                precision=training.precision,
                clip=1.0,
                sample=sampler.at(1),
            )
    wanted = memory.fullest.total()
    assert 0.999 * wanted < found < 1.001 * above * wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano", "bert-mini", "bert-small", "modern-mini"])
def test_predicted_memory_is_that_of_the_process(name):
    """Some 15 to 20 MB of the process, by its processor, are no tensors of the step."""
    assert predicted(name).peak == pytest.approx(measured_peak(name), rel=0.05, abs=24e6)
