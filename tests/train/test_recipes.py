"""The recipes: every preset has one, every number a source, and rules fit them to the machine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.model.config import PRESETS, preset
from clozeline.train.config import RECIPE_FIELDS, PretrainConfig
from clozeline.train.pretraining.recipes import RECIPES, SHARD_SETTINGS, recipe_of, resolve

PLENTY = 10**12  # examples


def settings_of(name, given_by_user=None, **machine):
    """The numbers of a preset and their sources, for a data set of any size."""
    machine = {"model": PRESETS[name], "examples": PLENTY, **machine}
    return resolve(recipe_of(name), given_by_user or {}, **machine)


def numbers(name, given_by_user=None, **machine):
    found = settings_of(name, given_by_user, **machine)
    return {field: setting.value for field, setting in found.items()}


def test_every_preset_has_a_recipe():
    assert list(RECIPES) == list(PRESETS)
    assert recipe_of("base") is recipe_of("bert-base")
    with pytest.raises(ValueError, match="unknown preset 'huge'; known: nano, "):
        recipe_of("huge")


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_number_is_chosen_and_is_possible(name, device, world_size):
    found = numbers(name, device=device, world_size=world_size)
    assert set(found) == {*RECIPE_FIELDS, *SHARD_SETTINGS}
    config = PretrainConfig(**{field: found[field] for field in RECIPE_FIELDS})
    config.accumulation(world_size)  # raises where the batch cannot be divided


def test_bert_base_on_one_gpu_is_trained_as_its_paper_says():
    found = numbers("bert-base", device="cuda")
    assert {name: found[name] for name in RECIPE_FIELDS} == {
        "batch_size": 256, "max_steps": 1_000_000, "optimizer": "adamw", "learning_rate": 1e-4,
        "warmup": 0.01, "schedule": "linear", "cool_down": 0.2, "weight_decay": 0.01,
        "beta1": 0.9, "beta2": 0.999, "clip": 1.0, "word_vectors": False, "sampled_words": 0,
        "precision": "auto",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "batch_size", "rate", "rule"),
    [
        ("bert-base", 512, 1.4e-4, "square root of the batch's growth"),
        ("nano", 64, 2.5e-3, "square root of the batch's growth"),
        ("nano", 512, 3.5e-3, "larger batches raise no rate above 0.001"),
        ("bert-tiny", 1024, 1e-3, "larger batches raise no rate above 0.001"),
    ],
)
def test_the_source_says_why_a_learning_rate_is_another_or_the_same(name, batch_size, rate, rule):
    found = settings_of(name, {"batch_size": batch_size})["learning_rate"]
    assert found.value == rate
    assert found.source.startswith(f"{recipe_of(name)['learning_rate'].source}; {rule} (")


@pytest.mark.parametrize("name", PRESETS)
def test_cpu_and_one_gpu_differ_only_in_how_long_they_train(name):
    cpu, gpu = numbers(name), numbers(name, device="cuda")
    assert cpu["max_steps"] < gpu["max_steps"]
    differing = {field for field in cpu if cpu[field] != gpu[field]}
    assert differing <= {"max_steps", "warmup"}


def test_a_cpu_trains_on_20_tokens_per_parameter():
    tokens = numbers("nano", max_seq_length=64)["max_steps"] * 128 * 64
    assert tokens == pytest.approx(20 * 9_442_108, rel=0.01)
    small = numbers("nano", model=preset("nano", vocab_size=500))
    assert small["max_steps"] < numbers("nano")["max_steps"] / 5


@given(
    name=st.sampled_from(list(PRESETS)),
    world_size=st.integers(1, 100),
    device=st.sampled_from(["cpu", "cuda"]),
    examples=st.integers(1, 10**10),
)
@settings(max_examples=50, deadline=None)
def test_batches_are_divided_equally_and_data_is_read_at_most_40_times(
    name, world_size, device, examples
):
    found = numbers(name, world_size=world_size, device=device, examples=examples)
    assert found["batch_size"] % world_size == 0
    assert found["max_steps"] == 1 or found["max_steps"] * found["batch_size"] <= 40 * examples
    assert found["warmup"] <= 0.06


@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "batch_size": st.integers(1, 1 << 20),
            "max_steps": st.integers(1, 10**7),
            "learning_rate": st.floats(1e-6, 1.0),
            "warmup": st.floats(0, 0.9),
            "beta2": st.floats(0, 0.99),
            "optimizer": st.just("muon"),
            "precision": st.just("fp32"),
        },
    ),
    world_size=st.sampled_from([1, 8]),
    device=st.sampled_from(["cpu", "cuda"]),
)
@settings(max_examples=50, deadline=None)
def test_what_is_given_wins(changes, world_size, device):
    machine = {"examples": 1000, "world_size": world_size, "device": device}
    found = settings_of("nano", changes, **machine)
    for name, value in changes.items():
        assert found[name] == (value, "given")
    assert {name for name in found if found[name].source == "given"} == set(changes)
