"""What only a GPU can show; `make gpu` runs it. Everything is compared with the CPU in float32.

With CLOZELINE_DRY_RUN the CPU takes the GPU's place, so that the tests themselves are tested.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

from clozeline.model.attention import attend, states_at
from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.train.artifacts.checkpoint import list_checkpoints
from clozeline.train.engine.distributed import World, join_world
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.evaluation.evaluate import evaluate_model
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import predict_logits, train_classifier
from clozeline.train.finetuning.search import Trial
from clozeline.train.inference.fill import masked_probabilities
from clozeline.train.monitoring.metrics import METRICS
from clozeline.train.pretraining.step import train_step
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_runs import training_config
from tests.support.small_training import STILL, command_line, numbers, preset_of, train, weights
from tests.support.step_forms import FORMS
from tests.train.test_finetune_loop import small_model, some_rows
from tests.train.test_step import make_batch, unpadded

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
TRAIN = ["-m", "clozeline"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *TRAIN]
DRY_RUN = "CLOZELINE_DRY_RUN" in os.environ
ALONE = World(0, 1, torch.device("cpu"))
#: Relative errors of a bfloat16 (8 bits) and a TF32 (11 bits) step.
ERRORS = {"bf16": 5e-2, "fp32": 5e-3}


@pytest.fixture(scope="module")
def gpu():
    """The world of a training process, with its settings of CUDA."""
    with join_world() as world:
        assert world.device.type == ("cpu" if DRY_RUN else "cuda")
        yield world


def steps_of(form, batches, world, *, precision, compile=False):
    """Yields sums and gradients of each step, float32 on the CPU; the weights stay as they are."""
    model = form.model().to(world.device)
    backend = "aot_eager" if DRY_RUN else "inductor"
    called = torch.compile(model, backend=backend) if compile else model
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.0), {}
    optimizer.register_step_pre_hook(
        lambda *_: found.update({n: p.grad.float().cpu() for n, p in model.named_parameters()})
    )
    for loaded in batches:
        sums, _ = train_step(
            called,
            optimizer,
            loaded.to(world.device),
            world=world,
            accumulation=form.accumulation,
            precision=precision,
            clip=0.0,
            sample=form.sample(world.device),
        )
        yield sums.cpu(), dict(found)


def error(found, wanted):
    """The norm of the difference of all tensors, relative to that of `wanted`."""
    difference = torch.stack([(found[name] - wanted[name]).norm() for name in wanted]).norm()
    return (difference / torch.stack([x.norm() for x in wanted.values()]).norm()).item()


def error_of(compute, world):
    """The error of a tensor that is computed there, relative to the same on the CPU."""
    return error({"": compute(world.device).cpu()}, {"": compute(ALONE.device)})


def assert_steps_of_the_cpu(form, batches, world, **options):
    torch._dynamo.reset()
    wanted = list(steps_of(form, batches, ALONE, precision="fp32"))
    steps = steps_of(form, batches, world, precision=form.precision, **options)
    for (sums, found), (wanted_sums, gradients) in zip(steps, wanted, strict=True):
        torch.testing.assert_close(sums[:2], wanted_sums[:2], rtol=ERRORS[form.precision], atol=0)
        assert error(found, gradients) < ERRORS[form.precision]


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", FORMS)
def test_a_step_of_every_form_is_that_of_the_cpu(name, compile, gpu):
    assert_steps_of_the_cpu(FORMS[name], [FORMS[name].loaded], gpu, compile=compile)


@pytest.mark.parametrize("name", ["unpadded", "modern unpadded"])
def test_compiled_steps_of_several_lengths_are_those_of_the_cpu(name, gpu):
    """With the second number of tokens, the compiler makes it a symbol."""
    loaded, whole = FORMS[name].loaded, make_batch().batch
    batches = [replace(loaded, batch=unpadded(whole.slice(0, rows))) for rows in (8, 5, 7)]
    assert_steps_of_the_cpu(FORMS[name], batches, gpu, compile=True)


def test_a_compiled_run_changes_its_batches_and_evaluates(small_folder, tmp_path):
    """Each with other shapes: those of another phase, and those of held-out examples."""
    config = replace(SMALL, max_seq_length=8, max_predictions_per_seq=2)
    short = write_data_set(tmp_path / "short", train=(40,), config=config)
    options = {"max_steps": 8, "phase": (f"{short}@0.5",), "eval_every": 2, "precision": "fp32"}
    for name, compile in (("compiled", True), ("eager", False)):
        train(small_folder, tmp_path / name, model=STILL, compile=compile, **options)
    assert_same_losses(tmp_path / "compiled", tmp_path / "eager", rel=1e-3)


@pytest.mark.parametrize("name", ["adamw", "adamw not fused", "muon"])
def test_three_updates_of_an_optimizer_are_those_of_the_cpu(name, gpu):
    def updated(device):
        model = BertForPretraining(FORMS["modern"].config).to(device)
        if name == "adamw not fused":
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False)
        else:
            optimizer = build_optimizer(model, training_config(optimizer=name))
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        draw = torch.Generator().manual_seed(0)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draw).to(device)
            optimizer.step()
        return {n: (p.detach() - before[n]).cpu() for n, p in model.named_parameters()}

    precision = "bf16" if name == "muon" else "fp32"  # Muon's matrices are in bfloat16
    assert error(updated(gpu.device), updated(ALONE.device)) < ERRORS[precision]


@pytest.mark.parametrize(
    ("pooling", "optimizer", "is_compiled"),
    [("mean", "adamw", False), ("cls", "adamw", True), ("mean", "muon", False)],
)
def test_a_classifier_trains_and_predicts_as_on_the_cpu(pooling, optimizer, is_compiled, gpu):
    rows, labels = some_rows(64)
    config = FinetuneConfig(precision="fp32", optimizer=optimizer)
    schedule = {"trial": Trial(learning_rate=1e-3, epochs=1), "seed": 0}

    def predicted(device):
        model = BertForClassification(small_model().config, 2, pooling=pooling).to(device)
        with tqdm(disable=True) as progress:
            how = {**schedule, "progress": progress, "world": World(0, 1, device)}
            how["is_compiled"] = is_compiled and device != ALONE.device
            train_classifier(model, rows, labels, config, **how)
        return torch.from_numpy(predict_logits(model, rows))

    assert error_of(predicted, gpu) < ERRORS["bf16" if optimizer == "muon" else "fp32"]


def test_held_out_losses_are_those_of_the_cpu(gpu):
    config, found = FORMS["nano"].config, []
    options = {"log_unigram": np.full(config.vocab_size, -1.0), "precision": "fp32"}
    for world in (gpu, ALONE):
        model = BertForPretraining(config).to(world.device)
        found.append(evaluate_model(model, [make_batch()], world=world, **options))
    [losses, wanted] = found
    assert losses.mlm_loss == pytest.approx(wanted.mlm_loss, rel=ERRORS["fp32"])
    assert losses.examples == wanted.examples > 0


@torch.no_grad()
def test_masks_are_filled_as_on_the_cpu(gpu):
    def filled(device):
        model = BertForPretraining(FORMS["nano"].config).to(device)
        return masked_probabilities(model, [2, 7, 4, 8, 4, 3], 4)

    assert error_of(filled, gpu) < ERRORS["fp32"]


def test_deterministic_runs_are_the_same_bits(small_folder, tmp_path):
    for name in ("one", "two"):
        train(small_folder, tmp_path / name, deterministic=True, precision="bf16", compile=False)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


@pytest.mark.parametrize("is_some", [False, True], ids=["all tokens", "some"])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("length", [7, 64, 128, 192])
def test_gradients_of_attention_are_those_of_the_cpu(length, is_masked, window, is_some, gpu):
    """cuDNN's can be NaN with a mask at 64 and 192."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(4, length, 3, 2, 64, generator=draw)
    weights = torch.randn(4, length, 2, 64, generator=draw)
    lengths = torch.tensor([length, length - 1, length // 2, 1])
    mask = torch.arange(length) < lengths[:, None] if is_masked else None
    weights = weights if mask is None else weights * mask[..., None, None]
    some = torch.stack([lengths - 1, lengths // 2, lengths * 0], 1) if is_some else None

    def gradient(device, dtype):
        qkv = rows.to(device, dtype).requires_grad_()
        known, at = (None if x is None else x.to(device) for x in (mask, some))
        attended = attend(qkv, known, dropout_prob=0.0, window=window, positions=at)
        (attended.float() * states_at(weights, some).to(device)).sum().backward()
        return qkv.grad.float().cpu()

    found, wanted = gradient(gpu.device, torch.bfloat16), gradient("cpu", torch.float32)
    assert found.isfinite().all()
    assert error({"": found}, {"": wanted}) < ERRORS["bf16"]


def test_a_run_logs_its_memory_and_use(small_folder, tmp_path):
    train(small_folder, tmp_path, max_steps=2, precision="bf16", compile=False)
    line = numbers(tmp_path)[0]
    assert DRY_RUN or line["peak_memory_gb"] > 0
    if "mfu" in line:
        assert 0 <= line["mfu_of_tokens"] <= line["mfu"] < 1  # rounded; so small a step has none


def test_a_killed_training_resumes_where_it_was(small_folder, tmp_path):
    options = {"max_steps": 60, "save_every": 10, "eval_every": 0, "keep": 9}
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(small_folder, whole, model=preset_of(small_folder), compile=False, **options)
    line = command_line(small_folder, run, "--no-compile", "--dropout=0.1", **options)
    with subprocess.Popen([sys.executable, *TRAIN, *line], cwd=ROOT) as process:
        while process.poll() is None and len(list_checkpoints(run)) < 2:
            pass
        process.send_signal(signal.SIGKILL)
    steps = (run / METRICS).read_text().count("\n")
    train(small_folder, run, model=preset_of(small_folder), compile=False, resume=True, **options)
    assert steps >= 10
    assert_same_losses(run, whole, rel=1e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("compiled", ["--no-compile", "--compile"])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_gpus_train_as_one_does(parallel, compiled, optimizer, small_folder, tmp_path):
    options = {"max_steps": 20, "precision": "bf16", "eval_every": 0, "optimizer": optimizer}
    one, two = tmp_path / "one", tmp_path / "two"
    flags = [compiled, "--dropout=0"]
    for command, out in ((TRAIN, one), (TORCHRUN, two)):
        line = command_line(small_folder, out, *flags, parallel=parallel, **options)
        alone = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"} if out == one else None
        subprocess.run([sys.executable, *command, *line], cwd=ROOT, env=alone, check=True)
    assert_same_losses(two, one, rel=2e-2)


def assert_same_losses(run, whole, *, rel):
    found, wanted = (
        [(line["step"], line["data_digest"], line["mlm_loss"]) for line in numbers(out)
         if "mlm_loss" in line] for out in (run, whole)
    )  # fmt: skip
    assert [line[:2] for line in found] == [line[:2] for line in wanted]
    assert [line[2] for line in found] == pytest.approx([line[2] for line in wanted], rel=rel)
