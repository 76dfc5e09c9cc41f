"""The options of what is read: length bins, no padding, checked shards."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import CorruptDataError, InputError
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.shards import checksum
from clozeline.train.artifacts.checkpoint import latest_checkpoint, list_checkpoints, read_state
from tests.support.command import output_of
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import (
    STILL,
    assert_same_run,
    command_line,
    go_back,
    numbers,
    train,
)

LONG = replace(STILL, max_position_embeddings=64)
NAME, VALIDATION = "train-00001-of-00003.arrow", "validation-00000-of-00001.arrow"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """57 examples of up to 64 tokens, in batches of two widths."""
    config = replace(SMALL, max_seq_length=64)
    return write_data_set(tmp_path_factory.mktemp("long"), train=(13, 20, 0, 7, 17), config=config)


def of_steps(run, name="mlm_loss"):
    """A number of each step."""
    return [line[name] for line in numbers(run) if name in line]


BINS = {"model": LONG, "length_bins": 3}


@pytest.fixture(scope="module")
def binned(folder, tmp_path_factory):
    """A run with length bins and without padding, with the same losses as with padding."""
    run = tmp_path_factory.mktemp("binned")
    train(folder, run, unpadded=True, **BINS)
    return run


def test_without_padding_the_same_is_learned_of_rows_that_bins_chose(folder, binned, tmp_path):
    train(folder, tmp_path / "padded", micro_batch_size=4, **BINS)
    assert of_steps(binned) == pytest.approx(of_steps(tmp_path / "padded"), rel=1e-5)
    train(folder, tmp_path / "plain", model=LONG, max_steps=2)
    assert of_steps(tmp_path / "plain", "data_digest") != of_steps(binned, "data_digest")[:2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("form", [
    {}, {"length_bins": 3}, {"unpadded": True}, {"masked_lm_prob": 0.5},
], ids=str)  # fmt: skip
def test_compiled_it_learns_the_same_whatever_the_form_of_the_batches(form, folder, tmp_path):
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    torch.compiler.reset()
    options = {"model": LONG, "micro_batch_size": 4, **form}
    for compiled in (False, True):
        train(folder, tmp_path / str(compiled), compile=compiled, **options)
    assert of_steps(tmp_path / "True") == pytest.approx(of_steps(tmp_path / "False"), rel=1e-4)


def test_with_bins_a_run_goes_on_in_the_middle_of_a_window(folder, binned, tmp_path):
    run = go_back(shutil.copytree(binned, tmp_path / "run"), 4)
    train(folder, run, resume=True, unpadded=True, **BINS)
    assert_same_run(run, binned)


def test_with_bins_nothing_may_change_that_the_order_depends_on(folder, binned, tmp_path):
    run = go_back(shutil.copytree(binned, tmp_path / "run"), 4)
    for changes, reason in (
        ({"length_bins": 3, "batch_size": 4}, "batch_size 8 there, 4 now"),
        ({"length_bins": 2}, "length_bins 3 there, 2 now"),
        ({}, "length_bins 3 there, 0 now; batch_size 8 there, None now"),
    ):
        with pytest.raises(InputError, match=reason):
            train(folder, run, model=LONG, resume=True, unpadded=True, **changes)
    assert len(list_checkpoints(run)) == 1


@pytest.fixture
def shards(tmp_path):
    return write_data_set(tmp_path / "shards", train=(20,), validation=(9,))


@pytest.mark.parametrize("micro", [None, 2])
def test_an_evaluation_takes_no_more_rows_at_once_than_training_does(micro, shards, tmp_path):
    rows = []

    def note(module, inputs, _):
        if isinstance(module, BertForPretraining):
            rows.append(len(inputs[0]))

    with register_module_forward_hook(note):
        train(shards, tmp_path / "run", max_steps=1, micro_batch_size=micro)
    assert set(rows) == {micro or 8}
    assert len(rows) == (1 + 2 if micro is None else 4 + 5)  # a step, the evaluation


def test_a_missing_validation_shard_is_named_before_the_first_step(shards, tmp_path):
    (shards / VALIDATION).unlink()
    with pytest.raises(InputError, match=f"{VALIDATION} is missing"):
        train(shards, tmp_path / "run")
    assert not list_checkpoints(tmp_path / "run")


def test_a_damaged_validation_shard_costs_nothing_of_what_was_trained(shards, tmp_path):
    zero(shards / VALIDATION)
    with pytest.raises(InputError, match=f"{VALIDATION} is damaged"):
        train(shards, tmp_path / "run", max_steps=3, save_every=0)
    assert read_state(latest_checkpoint(tmp_path / "run")).step == 3


@pytest.mark.parametrize(("size", "warnings"), [(8, 1), (5, 0)])
def test_a_batch_larger_than_the_data_set_is_a_warning(size, warnings, tmp_path, capsys):
    shards = write_data_set(tmp_path / "shards", train=(5,))
    train(shards, tmp_path / "run", max_steps=1, batch_size=size)
    line = f"a batch of {size} examples is larger than the data set (5)"
    assert capsys.readouterr().err.count(line) == warnings


def zero(path, *, cut=0):
    path.write_bytes(b"\0" * (path.stat().st_size - cut))


@pytest.fixture
def harmed(tmp_path):
    """A data set of 40 examples, 20 of them in a shard with another id than it was written with."""
    harmed = write_data_set(tmp_path / "harmed", train=(13, 20, 7))
    path = harmed / NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 4 * 2] ^= 1  # the low byte of an id, so it still is one
    path.write_bytes(data)
    return harmed


def test_a_shard_that_changed_ends_training_by_name(harmed, tmp_path):
    with pytest.raises(CorruptDataError, match=f"{NAME} is damaged"):
        train(harmed, tmp_path / "unchecked", max_steps=6)
    path, manifest = harmed / NAME, read_manifest(harmed)
    entries = [  # as if the checksum, which is not one against attackers, were right
        replace(x, checksum=checksum(path.read_bytes())) if x.name == NAME else x
        for x in manifest.shards
    ]
    write_manifest(harmed, replace(manifest, shards=entries))
    line = command_line(harmed, tmp_path / "run", "--check-shards", max_steps=6)
    assert f"{NAME} is damaged (its sha256 is not" in output_of(*line, code=2)


def test_a_damaged_shard_costs_nothing_of_what_was_trained(harmed, tmp_path):
    """The second half of the run reads it."""
    phase, run = f"{write_data_set(tmp_path / 'first', train=(40,))}@0.5", tmp_path / "run"
    with pytest.raises(CorruptDataError, match=f"{NAME} is damaged"):
        train(harmed, run, max_steps=6, save_every=0, phase=(phase,))
    state = read_state(latest_checkpoint(run))
    assert (state.step, state.loader["next_position"]) == (3, 0)
    assert state.loader["others"][0]["next_position"] == 24
