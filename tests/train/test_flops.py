"""The formula for a step's operations against what torch counts during one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clozeline.model.config import PRESETS, preset
from clozeline.model.heads import BertForPretraining
from clozeline.train.engine.distributed import World, device_name
from clozeline.train.engine.flops import mfu, peak_flops, step_flops
from clozeline.train.engine.gpus import gpu_named
from clozeline.train.pretraining.step import train_step
from clozeline.train.pretraining.word_sampler import WordSampler
from tests.benchmarks.last_layer_speed import random_batch
from tests.support.small_models import narrow

ROWS, LENGTH, PREDICTIONS = 4, 48, 7


def counted_flops(config, accumulation, words=0):
    """The step with dropout in attention: torch's fused kernel for CPU has no count."""
    sample = WordSampler(np.ones(config.vocab_size), words, seed=0).at(1)
    model = BertForPretraining(config)
    with FlopCounterMode(display=False) as counter:
        train_step(
            model,
            torch.optim.SGD(model.parameters()),
            random_batch(ROWS, LENGTH, PREDICTIONS, config.vocab_size),
            world=World(0, 1, torch.device("cpu")),
            accumulation=accumulation,
            precision="fp32",
            clip=1.0,
            count_hits=False,
            sample=sample,
        )
    return counter.get_total_flops()


def test_a_sample_of_words_is_less_work_and_no_sample_is_larger_than_the_vocabulary():
    config = preset("nano", attention_probs_dropout_prob=0.1)
    sizes = {"batch_size": ROWS, "seq_len": LENGTH, "predictions": PREDICTIONS}
    found = step_flops(config, **sizes, words=5000)
    assert found == pytest.approx(counted_flops(config, 1, words=5000), rel=0.02)
    every = step_flops(config, **sizes)
    assert found < 0.8 * every
    assert step_flops(config, **sizes, words=10**6) == every


@pytest.mark.parametrize(("name", "accumulation"), [("nano", 1), *((name, 2) for name in PRESETS)])
def test_the_formula_agrees_with_torchs_count_for_every_preset(name, accumulation):
    config = replace(
        narrow(name),
        max_position_embeddings=LENGTH,
        attention_probs_dropout_prob=0.1,
        local_attention=2 * LENGTH,  # on CPU a smaller window masks products, but does not save any
    )
    found = step_flops(config, batch_size=ROWS, seq_len=LENGTH, predictions=PREDICTIONS)
    assert found == pytest.approx(counted_flops(config, accumulation), rel=0.02)


def test_local_layers_need_the_products_of_their_window():
    """Of 22 layers every third is global; Q K^T and A V, forward and twice backward."""
    modern = preset("modern-base")
    long, everywhere = (
        step_flops(config, batch_size=1, seq_len=1024, predictions=0)
        for config in (modern, replace(modern, global_attn_every_n_layers=1))
    )
    assert everywhere - long == 3 * 14 * 4 * 768 * 1024 * (1024 - 129)


def test_the_utilization_is_that_of_all_devices():
    assert mfu(4e12, seconds=2.0, peak=10e12, devices=1) == pytest.approx(0.2)
    assert mfu(4e12, seconds=2.0, peak=10e12, devices=4) == pytest.approx(0.05)


def test_an_unknown_device_has_no_peak_and_no_utilization():
    assert peak_flops(device_name(torch.device("cpu")), "bf16") is None
    assert peak_flops("NVIDIA GeForce GTX 1080", "fp32") is None
    assert mfu(4e12, seconds=2.0, peak=None) is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *(("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-80GB", "A100")),
        *((f"NVIDIA {name}", name) for name in ("H100 PCIe", "H100 NVL", "H200", "H200 NVL")),
    ],
)
def test_devices_are_recognized_by_their_names(name, known):
    assert peak_flops(name, "bf16") == gpu_named(known).peak


def test_float32_has_the_peak_of_tf32():
    """494.7, 156 teraflops in the data sheets."""
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp32") == pytest.approx(494.7e12, rel=1e-3)
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 156e12
