"""The options of what is read: length bins, no padding, checked and skipped shards."""

import shutil
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch.nn.modules.module import register_module_forward_hook

from model.heads import BertForPretraining
from pipeline.common.errors import CorruptDataError, InputError
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import (
    STILL,
    assert_same_run,
    command_line,
    go_back,
    numbers,
    train,
)
from tests.support.training_configs import training_config
from train.artifacts.checkpoint import latest_checkpoint, list_checkpoints, read_state
from train.cli import main

LONG = replace(STILL, max_position_embeddings=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """57 examples of up to 64 tokens, in batches of two widths."""
    config = replace(SMALL, max_seq_length=64)
    return write_data_set(tmp_path_factory.mktemp("long"), train=(13, 20, 0, 7, 17), config=config)


def losses(run):
    return [line["mlm_loss"] for line in numbers(run) if "mlm_loss" in line]


def digests(run):
    return [line["data_digest"] for line in numbers(run) if "data_digest" in line]


@pytest.mark.parametrize("bins", [0, 3])
def test_without_padding_the_same_is_learned_of_the_same_rows(bins, folder, tmp_path):
    options = {"model": LONG, "length_bins": bins, "micro_batch_size": 4}
    for unpadded in (False, True):
        train(folder, tmp_path / str(unpadded), unpadded=unpadded, **options)
    wanted, found = tmp_path / "False", tmp_path / "True"
    if not bins:  # a narrower batch has another digest: its padding counts
        assert digests(found) == digests(wanted)
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize(
    "form", [{}, {"length_bins": 3}, {"unpadded": True}, {"batch_ramp": 0.5}], ids=str
)
def test_compiled_it_learns_the_same_whatever_the_form_of_the_batches(form, folder, tmp_path):
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    torch.compiler.reset()
    options = {"model": LONG, "micro_batch_size": 4 if "batch_ramp" not in form else None, **form}
    for compiled in (False, True):
        train(folder, tmp_path / str(compiled), compile=compiled, **options)
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), rel=1e-4)


def test_with_bins_other_batches_are_trained_on(folder, tmp_path):
    train(folder, tmp_path / "plain", model=LONG)
    train(folder, tmp_path / "bins", model=LONG, length_bins=3)
    assert digests(tmp_path / "plain") != digests(tmp_path / "bins")


def test_with_bins_a_run_goes_on_in_the_middle_of_a_window(folder, tmp_path):
    options = {"model": LONG, "length_bins": 3, "unpadded": True}
    train(folder, tmp_path / "whole", **options)
    run = go_back(shutil.copytree(tmp_path / "whole", tmp_path / "run"), 4)
    train(folder, run, resume=True, **options)
    assert_same_run(run, tmp_path / "whole")


def test_with_bins_nothing_may_change_that_the_order_depends_on(folder, tmp_path):
    train(folder, tmp_path, model=LONG, length_bins=3, max_steps=4)
    for changes, reason in (
        ({"length_bins": 3, "batch_size": 4}, "batch_size 8 there, 4 now"),
        ({"length_bins": 2}, "length_bins 3 there, 2 now"),
        ({}, "length_bins 3 there, 0 now"),
    ):
        with pytest.raises(InputError, match=reason):
            train(folder, tmp_path, model=LONG, resume=True, **changes)
    assert len(list_checkpoints(tmp_path)) == 1


def test_a_growing_batch_cannot_have_length_bins():
    with pytest.raises(ValueError, match="Use one of the two"):
        training_config(length_bins=3, batch_ramp=0.5)


@pytest.mark.parametrize("micro", [None, 2])
def test_an_evaluation_takes_no_more_rows_at_once_than_training_does(micro, tmp_path):
    shards = write_data_set(tmp_path / "shards", train=(20,), validation=(9,))
    rows = []
    hook = register_module_forward_hook(
        lambda module, inputs, _: (
            rows.append(len(inputs[0])) if isinstance(module, BertForPretraining) else None
        )
    )
    try:
        train(shards, tmp_path / "run", max_steps=1, micro_batch_size=micro)
    finally:
        hook.remove()
    assert set(rows) == {micro or 8}
    # a step, the evaluation, and the answers for the page that shows the model learning
    assert len(rows) == (1 + 2 + 2 if micro is None else 4 + 5 + 5)


def test_a_missing_validation_shard_is_named_before_the_first_step(tmp_path):
    shards = write_data_set(tmp_path / "shards", train=(20,), validation=(9,))
    (shards / "validation-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"validation-00000-of-00001.arrow is missing"):
        train(shards, tmp_path / "run")
    assert not list_checkpoints(tmp_path / "run")


def test_a_damaged_validation_shard_costs_nothing_of_what_was_trained(tmp_path):
    shards = write_data_set(tmp_path / "shards", train=(20,), validation=(9,))
    path = shards / "validation-00000-of-00001.arrow"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(InputError, match=r"validation-00000-of-00001.arrow is damaged"):
        train(shards, tmp_path / "run", max_steps=3, save_every=0)
    assert read_state(latest_checkpoint(tmp_path / "run")).step == 3


def test_a_batch_larger_than_the_data_set_is_a_warning(tmp_path, capsys):
    shards = write_data_set(tmp_path / "shards", train=(5,))
    train(shards, tmp_path / "run", max_steps=1)
    assert "a batch of 8 examples is larger than the data set (5)" in capsys.readouterr().err
    train(shards, tmp_path / "small", max_steps=1, batch_size=5)
    assert "larger than" not in capsys.readouterr().err


@pytest.fixture
def harmed(tmp_path):
    """A data set of 40 examples, 20 of them in a shard with another id than it was written with."""
    harmed = write_data_set(tmp_path / "harmed", train=(13, 20, 7))
    path = harmed / "train-00001-of-00003.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 4 * 2] ^= 1  # the low byte of an id, so it still is one
    path.write_bytes(data)
    return harmed


def test_a_shard_that_changed_ends_training_by_name(harmed, tmp_path):
    with pytest.raises(CorruptDataError, match=r"train-00001-of-00003.arrow is damaged"):
        train(harmed, tmp_path / "unchecked", max_steps=6)
    line = command_line(harmed, tmp_path / "run", "--check-shards", max_steps=6)
    refused = CliRunner().invoke(main, line)
    assert refused.exit_code == 2
    assert "train-00001-of-00003.arrow is damaged (its sha256 is not" in refused.output


def skipped_of(run):
    return read_state(latest_checkpoint(run)).loader["skipped_shards"]


def test_skipped_shards_are_counted_and_stay_skipped(harmed, tmp_path, capsys):
    options = {"check_shards": True, "skip_bad_shards": True}
    run = tmp_path / "run"
    train(harmed, run, max_steps=4, **options)
    warning = capsys.readouterr().err
    said = "warning: 1 of 3 shards are skipped, with 20 of 40 training examples."
    assert said in warning
    assert "train-00001-of-00003.arrow is damaged" in warning
    assert read_state(latest_checkpoint(run)).loader["skipped_shards"] == [
        "train-00001-of-00003.arrow"
    ]
    train(harmed, run, resume=True, max_steps=8, **options)
    assert read_state(latest_checkpoint(run)).loader["skipped_shards"] == [
        "train-00001-of-00003.arrow"
    ]
    with pytest.raises(
        InputError, match=r"skipped_shards \['train-00001-of-00003.arrow'\] there, \[\] now"
    ):
        train(harmed, run, resume=True)  # unchecked, it is a shard like the others


def test_a_growing_batch_reads_on_without_the_skipped_shard(harmed, tmp_path):
    """The second size reads on where the first one ended, without the shard that was skipped."""
    options = {"check_shards": True, "skip_bad_shards": True, "batch_size": 16}
    train(harmed, tmp_path / "run", batch_ramp=0.9, **options)
    state = read_state(latest_checkpoint(tmp_path / "run"))
    assert state.step == 12
    assert 12 * 2 < state.loader["next_position"] < 12 * 16
    assert state.loader["skipped_shards"] == ["train-00001-of-00003.arrow"]
