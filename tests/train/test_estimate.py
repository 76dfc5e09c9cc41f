"""What a step computes and a run will need; and rows of up to 8,192 tokens."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from clozeline.model.config import PRESETS, preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.engine.distributed import World
from clozeline.train.engine.flops import GPUS, gpu_named, mfu, peak_flops, step_flops
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.estimate.estimate import UTILIZATION, Estimate, step_cost
from clozeline.train.pretraining.step import WordSampler, train_step
from tests.pipeline.test_examples import examples_of
from tests.pipeline.test_row_checks import findings_of
from tests.support.command import invoke, output_of
from tests.support.pretended_gpu import WithoutDevice, pretended_gpu
from tests.support.small import make_documents, small_tokenizer
from tests.support.small_models import gradients, narrow
from tests.support.small_runs import training_config
from tests.support.step_forms import FORMS

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
#: The others differ from these in nothing that asks for the device.
ON_CUDA = {
    *("full", "accumulation", "packed"),
    *("sampled untied", "sampled fp32", "modern unpadded"),
}


ROWS, LENGTH, PREDICTIONS = 4, 48, 7
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def random_batch(vocabulary, rows=ROWS):
    """Rows without padding, and without pairs."""
    slots = torch.rand(rows, LENGTH).argsort(1)[:, :PREDICTIONS].sort(1).values
    ids = torch.randint(5, vocabulary, (rows, LENGTH))
    batch = Batch(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=torch.ones_like(ids, dtype=torch.bool),
        masked_lm_positions=slots,
        masked_lm_labels=ids.gather(1, slots),
        masked_lm_weights=torch.ones(rows, PREDICTIONS),
        next_sentence_labels=torch.full((rows,), -1),
        example_weights=torch.ones(rows),
    )
    counts = {"num_tokens": ids.numel(), "num_predictions": slots.numel(), "num_pairs": 0}
    return LoadedBatch(batch=batch, next_position=rows, digest=0, **counts)


def counted_flops(config, accumulation, words=0):
    """The step with dropout in attention: torch's fused kernel for CPU has no count."""
    sample = WordSampler(np.ones(config.vocab_size), words, seed=0).at(1)
    model = BertForPretraining(config)
    with FlopCounterMode(display=False) as counter:
        train_step(
            model,
            torch.optim.SGD(model.parameters()),
            random_batch(config.vocab_size),
            world=World(0, 1, torch.device("cpu")),
            accumulation=accumulation,
            precision="fp32",
            clip=1.0,
            count_hits=False,
            sample=sample,
        )
    return counter.get_total_flops()


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    "name", [x if x in ON_CUDA else pytest.param(x, marks=pytest.mark.slow) for x in FORMS]
)
def test_a_step_of_every_form_runs_on_pretended_gpus(name):
    """CUDA's branches, dtypes and kernels, without CUDA; mixing devices is an error."""
    form = FORMS[name]
    loaded = form.loaded
    with pretended_gpu() as fake, WithoutDevice():
        with CUDA:
            model = form.model()
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


def test_gpus_are_found_by_any_spelling():
    for gpu in GPUS:
        assert gpu_named(gpu.name.lower()) is gpu_named(gpu.name.replace(" ", "")) is gpu


def on_an_h200(name, length, predictions, rows, **options):
    """An estimate of a step that was measured (docs/manual/results.md)."""
    model = preset(name, vocab_size=16384 if name == "modern-small" else 30522)
    training = training_config(batch_size=rows, micro_batch_size=rows, precision="bf16", **options)
    data = DataConfig(max_seq_length=length, max_predictions_per_seq=predictions)
    return Estimate(gpu=gpu_named("h200"), gpus=1, model=model, training=training, data=data)


STEPS = [("nano", 64, 10, 4096), ("bert-base", 128, 20, 512), ("modern-small", 64, 20, 1024)]
MILLISECONDS = [20.0, 96.4, 20.5]  # of a compiled step


@pytest.mark.parametrize(("step", "measured"), list(zip(STEPS, MILLISECONDS, strict=True)))
def test_guesses_are_what_an_h200_took(step, measured):
    """An eager step moves more."""
    compiled, eager = on_an_h200(*step), on_an_h200(*step, compile=False)
    assert 1e3 * compiled.seconds(utilization=UTILIZATION) == pytest.approx(measured, rel=0.1)
    assert eager.seconds(utilization=1.0) > 1.3 * compiled.seconds(utilization=1.0)


@pytest.mark.parametrize(("left_out", "foretold"), [(0, 0.86), (1, 0.77), (2, 1.09)])
def test_guesses_fitted_to_two_of_the_steps_foretell_the_third(left_out, foretold):
    """Within a quarter; docs/manual/results.md has the ratios."""
    estimates = [on_an_h200(*step) for step in STEPS]
    products = [estimate.flops / estimate.gpu.peak for estimate in estimates]
    others = [
        estimate.cost(estimate.rows).traffic / estimate.gpu.bandwidth for estimate in estimates
    ]
    shares = np.column_stack([products, others]) * 1e3 / np.array(MILLISECONDS)[:, None]
    fitted = np.delete(shares, left_out, axis=0)
    guesses = np.linalg.solve(fitted, np.ones(2))
    assert shares[left_out] @ guesses == pytest.approx(foretold, abs=0.01)


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
    assert [row[-11:-8] for row in rows] == [["16", "2", "8"], ["16", "2", "1"]] * 2
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


#: Of 32 rows a pass in bfloat16: megabytes when memory is fullest, megabytes moved, and 1e9
#: operations of matrix products. Counted on fake CUDA tensors by the walk of bc26f2d5, whose last
#: layer attended from all tokens; the operations of `nano` and `bert-mini` are torch's count.
COUNTED = [
    ("nano", 64, {}, 1, 281, 2855, 28.8),
    ("nano", 64, {"sampled_words": 4096}, 1, 226, 1738, 15.8),
    ("bert-mini", 64, {"precision": "fp32"}, 1, 376, 4673, 49.1),
    ("bert-mini", 512, {"optimizer": "muon"}, 1, 1532, 20976, 458),
    ("bert-base", 64, {}, 2, 2798, 21062, 1053),
    ("bert-base", 512, {"unpadded": True}, 1, 7928, 89089, 9446),
    ("modern-base", 512, {}, 1, 11638, 263884, 12912),
]


@pytest.mark.parametrize(
    ("name", "length", "changes", "passes", "peak", "moved", "products"), COUNTED
)
def test_the_formulas_give_what_was_counted(name, length, changes, passes, peak, moved, products):
    model = preset(name, attention_probs_dropout_prob=0.0)
    data = DataConfig(max_seq_length=length, max_predictions_per_seq={64: 10, 512: 77}[length])
    training = training_config(batch_size=32 * passes, **{"precision": "bf16"} | changes)
    cost = step_cost(model, training, data, rows=32, passes=passes)
    assert cost.peak / 1e6 == pytest.approx(peak, rel=0.08)
    assert cost.traffic / 1e6 == pytest.approx(moved, rel=0.1)
    assert cost.pass_flops / 1e9 == pytest.approx(products, rel=0.04)


class Memory(TorchDispatchMode):
    """Counts the bytes of all living tensors, and the most there were."""

    def __init__(self):
        super().__init__()
        self.bytes = self.fullest = 0
        self._storages = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        for tensor in (x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)):
            storage = tensor.untyped_storage()
            if id(storage) not in self._storages and tensor.numel():
                self._storages.add(id(storage))
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._remove, id(storage), storage.nbytes())
        self.fullest = max(self.fullest, self.bytes)
        return outputs

    def _remove(self, key, size):
        self._storages.remove(key)
        self.bytes -= size


@pytest.mark.parametrize(
    ("changes", "passes"),
    [({}, 1), ({"optimizer": "muon"}, 2)],
)
def test_a_real_step_needs_the_memory_of_the_formula(changes, passes):
    config = preset("bert-mini", vocab_size=500, **STILL)
    data = DataConfig(max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS)
    training = training_config(batch_size=64, **changes)
    how = {"accumulation": passes, "precision": "fp32", "clip": 1.0}
    loaded = random_batch(500, rows=64)
    with Memory() as memory:
        model = BertForPretraining(config, seed=0).train()
        optimizer = build_optimizer(model, training)
        for _ in range(2):
            train_step(model, optimizer, loaded, world=World(0, 1, CPU), **how)
    found = step_cost(config, training, data, rows=64 // passes, passes=passes).peak
    assert found == pytest.approx(memory.fullest, rel=0.1)


# --- Rows of up to 8,192 tokens: shards, masks, the loader, a step of training --------------------
LONGEST = 8192
CONFIG = DataConfig(max_seq_length=LONGEST, num_shards=1)


@pytest.mark.parametrize("pairs", ["segments", "none", "packed"])
def test_a_document_of_twenty_thousand_tokens_makes_sound_rows(pairs):
    words = small_tokenizer().replacement_ids.astype(np.uint16)
    ids = np.resize(words, 20_400)
    documents = make_documents([[[500] * 40], [[400]]], ids=ids)
    config = replace(CONFIG, pairs=pairs)
    examples, _ = examples_of(documents, config)
    assert findings_of(examples, config) == []
    assert examples.input_ids.lengths.max() == LONGEST
    assert examples.masked_lm_positions.lengths.max() == round(0.15 * LONGEST)
    assert examples.masked_lm_positions.values.max() > 8000
