"""Where the numbers of a run come from: what is given, the run itself, another run, a recipe."""

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from clozeline.model.config import PRESETS, BertConfig, preset
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.architecture import architecture
from clozeline.train.artifacts.run import read_run
from clozeline.train.config import RECIPE_FIELDS
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import (
    newest_flash_attention,
    resolve_precision,
    resolve_unpadded,
)
from clozeline.train.pretraining.recipes import (
    DEVLIN_MASKS,
    RECIPES,
    TOKENS_PER_PARAMETER,
    Origin,
    recipe_like,
)
from clozeline.train.pretraining.start import Start, find_start, make_plan
from tests.support.command import invoke, output_of
from tests.support.pretended_gpu import WithoutDevice, pretended_gpu
from tests.support.small_training import SHORT, go_back, preset_of, train

ALONE = World(0, 1, torch.device("cpu"))
NATIVE = resolve_precision("auto", ALONE.device)
GPU = World(0, 1, torch.device("cuda", 0))
#: What small runs have beside their recipe, and keep.
KEPT = {"log_every", "save_every", "keep", "unpadded"}


def plan(shards, out, *, world=ALONE, **changes):
    return make_plan(read_manifest(shards), find_start(Start(out=out, **changes), world), world)


@pytest.fixture
def run(small_folder, tmp_path):
    """A bert-tiny of 2 steps with numbers that are in no recipe."""
    model = replace(preset_of(small_folder), hidden_dropout_prob=0.3)
    odd = {"beta2": 0.9, "weight_decay": 0.5, "schedule": "cosine", "learning_rate": 3e-3}
    train(small_folder, tmp_path / "run", model=model, max_steps=2, save_every=0, **odd)
    return tmp_path / "run"


def test_a_new_run_takes_the_numbers_of_its_preset(small_folder, tmp_path):
    for name in ("nano", "bert-base"):
        found = plan(small_folder, tmp_path, preset=name)
        for field in ("batch_size", "learning_rate", "optimizer", "clip"):
            assert found.settings[field] == RECIPES[name][field]
        assert found.settings["max_steps"].source.startswith("40 epochs")
        note = f"note: --max-steps {found.values['max_steps']}: 40 epochs "
        assert re.fullmatch(rf"{note}.*, not [\d,]+ steps\..* 57 examples\.", found.note)
    assert plan(small_folder, tmp_path).values == plan(small_folder, tmp_path, preset="nano").values


def test_on_cuda_a_new_run_has_no_dropout_in_attention_and_a_note(run, small_folder, tmp_path):
    on_gpu = {"preset": "bert-tiny", "options": {"precision": "bf16"}, "world": GPU}
    found = plan(small_folder, tmp_path / "new", **on_gpu)
    model = found.model
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (0.1, 0.0)
    assert found.note.splitlines()[-1] == (
        "note: no dropout in attention, which excludes the fastest kernels on CUDA; --dropout 0.1 "
        "applies it there, too."
    )
    given = plan(small_folder, tmp_path / "new", dropout=0.2, **on_gpu)
    assert given.model.attention_probs_dropout_prob == 0.2
    assert "attention" not in (given.note or "")
    resumed = plan(small_folder, run, **on_gpu)  # keeps its own
    assert resumed.model.attention_probs_dropout_prob == 0.1
    assert "attention" not in (resumed.note or "")


@pytest.mark.parametrize("preset", [None, "bert-tiny"])
def test_a_run_goes_on_with_its_own_model_and_numbers(preset, run, small_folder):
    there = read_run(run)
    found = plan(small_folder, run, preset=preset)
    assert found.model == there.model
    stored = there.training.to_dict()
    assert found.values == {name: stored[name] for name in (*RECIPE_FIELDS, *found.inherited)}
    assert set(found.inherited) == KEPT
    assert {setting.source for setting in found.settings.values()} == {str(run)}


def test_what_is_given_wins_over_the_run(run, small_folder):
    found = plan(small_folder, run, preset="bert-tiny", dropout=0.2, options={"max_steps": 9})
    assert found.values == plan(small_folder, run).values | {"max_steps": 9}
    assert found.model.hidden_dropout_prob == 0.2


def test_a_run_keeps_what_is_not_the_default_unless_it_is_unset_or_steps_end_the_run(
    small_folder, tmp_path
):
    out, how = tmp_path / "out", {"for_": "0.5s", "masked_lm_prob": 0.3}
    how |= {name: getattr(SHORT, name) for name in KEPT} | {"unpadded": True}
    model = preset_of(small_folder)
    train(small_folder, out, model=model, optimizer="muon", **how)
    assert plan(small_folder, out, resume=True).inherited == how
    padded = plan(small_folder, out, options={"unpadded": False}).inherited
    assert padded == {name: how[name] for name in how if name != "unpadded"}
    del how["for_"]
    assert plan(small_folder, out, options={"max_steps": 9}).inherited == how
    assert plan(small_folder, tmp_path / "new", origin=Origin(out)).inherited == {}


def test_a_run_without_a_checkpoint_decides_nothing_unless_it_is_resumed(
    run, small_folder, tmp_path
):
    resumed = plan(small_folder, go_back(run, 0), resume=True).values
    found = plan(small_folder, run, preset="bert-tiny").values
    assert found == plan(small_folder, tmp_path / "new", preset="bert-tiny").values != resumed


def test_another_run_hands_on_its_numbers_but_not_the_format_of_its_device(
    run, small_folder, tmp_path
):
    found = plan(small_folder, tmp_path / "new", origin=Origin(run))
    assert found.model == read_run(run).model
    own = plan(small_folder, run)
    wanted = {name: own.values[name] for name in RECIPE_FIELDS}
    assert found.values == wanted | {"precision": NATIVE}


@pytest.mark.parametrize(
    ("device", "precision", "changes", "expected"),
    [
        ("cuda", "bf16", {}, True),
        ("cuda", "fp32", {}, False),
        ("cuda", "bf16", {"attention_probs_dropout_prob": 0.1}, False),
        ("cuda", "bf16", {"num_attention_heads": 32}, False),  # of 4: the kernel wants 8, 16, ...
        ("cpu", "bf16", {}, False),
    ],
)
def test_rows_are_concatenated_by_default_where_a_kernel_is_made_for_that(
    device, precision, changes, expected
):
    model = replace(preset("bert-tiny", vocab_size=64, attention_probs_dropout_prob=0.0), **changes)
    how = {"precision": precision, "device": torch.device(device)}
    assert resolve_unpadded(None, model, **how) == expected
    assert not resolve_unpadded(False, model, **how)
    if device == "cuda" and precision == "bf16" and model.attention_probs_dropout_prob:
        with pytest.raises(InputError, match="give --dropout 0 or --no-unpadded"):
            resolve_unpadded(True, model, **how)
    else:
        assert resolve_unpadded(True, model, **how)


@pytest.mark.parametrize("generation", [8, 9, 10])
def test_flash_attention_is_used_where_it_is_installed_and_nowhere_else(generation, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (generation, 0))
    attention, activated, restored = torch.nn.attention, [], []
    monkeypatch.setattr(attention, "activate_flash_attention_impl", activated.append)
    model = preset("modern-nano", vocab_size=64, attention_probs_dropout_prob=0.0)
    how = model, torch.device("cuda")
    made_for_it = {8: [], 9: ["FA4", "FA3"], 10: ["FA4"]}[generation]
    with pretended_gpu(), WithoutDevice(), newest_flash_attention(*how, is_wanted=True) as used:
        assert [used] == (made_for_it[:1] or [None])
    dropping = replace(model, attention_probs_dropout_prob=0.1)
    for other in ((model, ALONE.device, True), (*how, False), (dropping, how[1], True)):
        with newest_flash_attention(*other[:2], is_wanted=other[2]) as used:
            assert used is None
    assert activated == made_for_it[:1]

    def other_values(*_, **__):
        raise ValueError("too many values to unpack (expected 2)")

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", other_values)
    monkeypatch.setattr(attention, "restore_flash_attention_impl", lambda: restored.append(1))
    with pretended_gpu(), WithoutDevice(), newest_flash_attention(*how, is_wanted=True) as used:
        assert used is None
    assert (activated[1:], len(restored)) == (made_for_it, len(made_for_it))
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (generation, 0))
    if not (find_spec("flash_attn") or find_spec("flash_attn_interface")):
        with newest_flash_attention(*how, is_wanted=True) as used:
            assert used is None
    assert attention.current_flash_attention_impl() is None


def test_the_preset_of_a_run_with_more_positions_may_be_repeated(small_folder, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    model = replace(preset_of(small_folder), max_position_embeddings=600)
    train(small_folder, first, model=model, max_steps=1)
    line = ["pretrain", small_folder, "--out", second, "--preset", "bert-tiny"]
    output_of(*line, "--from", first, "--max-steps", 1)
    output_of(*line, "--resume", "--max-steps", 2)
    assert read_run(second).model == model
    line[3], line[-1] = tmp_path / "third", "bert-mini"
    said = output_of(*line, "--from", first, "--max-steps", 1, code=2)
    assert "(hidden_size 128 there, 256 now; " in said
    assert "max_position_embeddings" not in said


def test_print_recipe_prints_options_that_can_be_pasted_and_writes_nothing(small_folder, tmp_path):
    line = (small_folder, "--out", tmp_path / "run", "--preset", "bert-tiny", "--seed", 3)
    result = invoke("pretrain", *line, "--beta1", 0.5, "--print-recipe")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = columns_of(result.stdout)
    assert (["--beta1", "0.5"], "given") in rows
    assert (["--precision", NATIVE], "bf16 where the device has it") in rows
    assert (["--dropout", "0.1"], "the model's own") in rows
    assert (["--no-word-vectors"], "google-research/bert, modeling.py") in rows
    assert (["--sampled-words", "0"], "google-research/bert, modeling.py") in rows
    assert ["--pairs", "segments"] in [options for options, _ in rows]
    assert not (tmp_path / "run").exists()

    pasted = [word for options, _ in rows[:-2] for word in options]  # the last are for the shards
    again = columns_of(invoke("pretrain", *line, *pasted, "--print-recipe").stdout)
    assert [options for options, _ in again] == [options for options, _ in rows]
    assert {source for _, source in again[:-3]} == {"given"}


def test_print_recipe_wants_neither_shards_nor_a_folder():
    done = invoke("pretrain", "--preset=bert-base", "--print-recipe")
    assert "\nreached    not measured\n" in done.stdout
    assert "\nreached    held-out loss 3.67 nats" in output_of("pretrain", "--print-recipe")
    assert done.exit_code == 0
    assert done.stderr == (
        "note: without SHARDS, 30,522 tokens in the vocabulary and examples of 128 tokens are "
        "assumed.\n"
    )
    rows = columns_of(done.stdout)
    assert rows[1] == (["--max-steps", "66147"], TOKENS_PER_PARAMETER.source)
    assert rows[-1] == (["--pairs", "segments"], DEVLIN_MASKS)
    said = output_of("pretrain", "--phase=a@0.5", "--print-recipe", code=2)
    assert said.endswith("--phase reads other data first; give SHARDS, too.\n")


CHAPTER = ["hidden_size=768", "num_attention_heads=4", "intermediate_size=1024"]


@pytest.mark.parametrize(
    ("line", "parameters"),
    [
        (["--preset=nano", "--set=tie_word_embeddings=false"], "17,272,124"),  # the notebook
        (["--preset=d2l", *(f"--set={change}" for change in CHAPTER)], "56,746,300"),
        (["--preset=bert-tiny"], "4,433,468"),
    ],
)
def test_the_weights_of_an_architecture_are_a_table(line, parameters):
    lines = output_of("pretrain", *line, "--print-recipe").splitlines()
    table = [row.split()[-1] for row in lines[lines.index("weights:") + 1 :]]
    *counts, total = (int(number.replace(",", "")) for number in table)
    assert f"{total:,}" == parameters
    tables = sum("word_embeddings.weight" in row or "decoder.weight" in row for row in lines)
    hidden = int(next(row for row in lines if "word_embeddings" in row).split()[3])
    assert sum(counts) == total + tables * hidden * (30_528 - 30_522)


def test_a_file_has_our_fields_or_those_of_hugging_face(tmp_path):
    ours, theirs = tmp_path / "ours.json", tmp_path / "config.json"
    ours.write_text('{"hidden_size": 320, "num_attention_heads": 5}')
    theirs.write_text('{"model_type": "bert", "hidden_size": 320, "num_attention_heads": 5}')
    assert (
        architecture(str(ours))
        == architecture(str(theirs))
        == BertConfig(hidden_size=320, num_attention_heads=5)
    )
    changed = architecture(str(ours), ["hidden_size=160", "gated=TRUE", "layer_norm_eps=1e-5"])
    assert changed == BertConfig(
        hidden_size=160, num_attention_heads=5, gated=True, layer_norm_eps=1e-5
    )
    assert recipe_like(replace(BertConfig(), vocab_size=99)) == RECIPES["bert-base"]
    assert recipe_like(replace(PRESETS["modern-mini"], hidden_size=192)) == RECIPES["modern-mini"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--set=hidden_sise=3"], "unknown model setting: hidden_sise; did you mean hidden_size?"),
        (["--set=hidden_size"], "--set hidden_size: give FIELD=VALUE, as in hidden_size=320."),
        (["--set=hidden_size=big"], "--set hidden_size=big: hidden_size is a whole number."),
        (["--set=gated=1"], "--set gated=1: gated is true or false."),
        (["--set=vocab_size=99"], "--set vocab_size: the vocabulary is that of the shards; "),
        (["--preset=nosuch.json"], "nosuch.json does not exist; check the path."),
        (["--preset=nanno"], f"unknown preset 'nanno'; known: {', '.join(PRESETS)}. Did you"),
        (["--set= hidden_size = 10"], "hidden_size 10 is not divisible by num_attention_heads 4"),
    ],
)
def test_an_architecture_that_cannot_be_is_one_line(line, said):
    assert f"Error: {said}" in output_of("pretrain", *line, "--print-recipe", code=2)


@pytest.mark.parametrize(
    ("line", "missing"), [(["--out=x"], "argument 'SHARDS'"), (["x"], "option '--out'")]
)
def test_training_wants_both(line, missing):
    assert f"Missing {missing}." in output_of("pretrain", *line, code=2)


def columns_of(printed):
    """Options and sources."""
    lines = [line for line in printed.splitlines() if line.startswith("  --")]
    return [(line[:30].split(), line[30:]) for line in lines]
