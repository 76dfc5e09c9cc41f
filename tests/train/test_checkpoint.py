"""Checkpoints and runs are whole or absent, and what they hold comes back by name."""

import json
import shutil
from dataclasses import replace
from functools import partial
from hashlib import sha256

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import DivergedError, InputError, JobFailedError
from clozeline.pipeline.common.json_files import file_sha256, sealed
from clozeline.train.artifacts.checkpoint import (
    CheckpointWriter,
    TrainState,
    check_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    load_moments,
    load_weights,
    read_state,
    remove_old_checkpoints,
    restore_moments,
    save_checkpoint,
    take_snapshot,
    weights_digest,
)
from clozeline.train.artifacts.run import load_run
from tests.support.files import contents, no_file_longer_than
from tests.support.small import small_tokenizer
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

STATE = TrainState(step=7, loader={"next_position": 56, "seed": 3}, heldout_loss=1.5)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def make_optimizer(model, *, backwards=False):
    parameters = list(model.parameters())
    return torch.optim.AdamW(parameters[::-1] if backwards else parameters, lr=0.1, fused=True)


def update(model, optimizer, times=1):
    for i in range(times):
        model(torch.arange(4.0) + i).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(times=1):
    """A model and its optimizer after so many steps."""
    model = make_model()
    optimizer = make_optimizer(model)
    update(model, optimizer, times)
    return model, optimizer


def save(run, *, step=7, heldout_loss=None):
    state = replace(STATE, step=step, heldout_loss=heldout_loss)
    return save_checkpoint(run, take_snapshot(*trained()), state)


def steps_of(run):
    return [int(folder.name.removeprefix("step-")) for folder in list_checkpoints(run)]


def test_it_holds_weights_and_moments_by_name_and_the_state(tmp_path):
    model, optimizer = trained()
    folder = save_checkpoint(tmp_path, take_snapshot(model, optimizer), STATE)
    assert folder == tmp_path / "checkpoints" / "step-00000007"
    files = ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(path.name for path in folder.iterdir()) == files

    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == model.state_dict().keys()
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())
    moments = load_file(folder / "optimizer.safetensors")
    names = {f"{name}/{moment}" for name in stored for moment in ("step", "exp_avg", "exp_avg_sq")}
    assert moments.keys() == names
    assert torch.equal(moments["2.bias/exp_avg"], optimizer.state[model[2].bias]["exp_avg"])
    state = json.loads((folder / "state.json").read_text())
    assert vars(STATE).items() <= state.items()
    assert state["files"] == {name: sha256((folder / name).read_bytes()).hexdigest()
                              for name in files[:2]}  # fmt: skip


def test_a_state_of_another_version_is_refused(tmp_path):
    folder = save(tmp_path)
    values = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(sealed(values | {"pool_rows": 9})))
    with pytest.raises(InputError, match=r"another version of Clozeline: unknown pool_rows\); del"):
        read_state(folder)


def test_moments_are_restored_by_name_and_the_next_steps_are_the_same_bits(tmp_path):
    model, optimizer = trained(3)
    folder = save_checkpoint(tmp_path, take_snapshot(model, optimizer), STATE)
    update(model, optimizer, 2)

    again = make_model(seed=1)
    again.load_state_dict(load_weights(folder))
    # Another order of the parameters: their numbers in the optimizer would be the wrong ones.
    other = make_optimizer(again, backwards=True)
    restore_moments(again, other, load_moments(folder))
    update(again, other, 2)
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("losses", "keep", "kept"),
    [
        ((None, 0.5, 0.1, 0.7, 0.3, None), 2, [3, 5, 6]),  # the newest and the best
        ((None,) * 4, 3, [2, 3, 4]),
        ((0.1, 0.5, 0.7), 1, [2, 3]),  # the first cannot be read
    ],
)
def test_the_newest_and_the_best_are_kept(losses, keep, kept, tmp_path):
    for step, loss in enumerate(losses, 1):
        save(tmp_path, step=step, heldout_loss=loss)
    (list_checkpoints(tmp_path)[0] / "state.json").write_text("{")
    remove_old_checkpoints(tmp_path, keep=keep)
    assert steps_of(tmp_path) == kept


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "missing", "garbage", "one bit"])
def test_a_damaged_file_is_named_with_the_folder_to_delete(name, damage, tmp_path):
    folder = save(tmp_path)
    whole = (folder / name).read_bytes()
    flipped = bytes([*whole[:-12], whole[-12] ^ 1, *whole[-11:]])  # a digit, or a number's bit
    damaged = {"cut": whole[:-9], "garbage": b"\x99" * 64, "one bit": flipped}
    (folder / name).write_bytes(damaged.get(damage, b""))
    if damage == "missing":
        (folder / name).unlink()
    for reads in ((load_weights, load_moments, read_state), (check_checkpoint,)):
        with pytest.raises(InputError, match=rf"{name} cannot be read \(.*\); delete {folder}"):
            [read(folder) for read in reads]


def test_a_checkpoint_removed_after_its_check_is_not_called_damaged(tmp_path):
    """By a run that is training, from which another one starts or is cooled down."""
    folder = save(tmp_path)
    check_checkpoint(folder)
    shutil.rmtree(folder)
    loads = (partial(load, is_checked=True) for load in (load_weights, load_moments))
    for read in (*loads, weights_digest, check_checkpoint):
        with pytest.raises(InputError, match=rf"^{folder}/.*; a run that is still training may"):
            read(folder)


def test_training_goes_on_until_the_checkpoint_is_there(tmp_path):
    """A model that is large enough to be written slowly, changed all the time."""
    model = nn.Linear(2048, 2048)
    optimizer = make_optimizer(model)
    model(torch.ones(2048)).sum().backward()
    optimizer.step()
    before = take_snapshot(model, optimizer)
    with CheckpointWriter(tmp_path, keep=1) as writer:
        writer.save(take_snapshot(model, optimizer), STATE)
        while not list_checkpoints(tmp_path) and not writer.has_failed:
            optimizer.step()
    folder = latest_checkpoint(tmp_path)
    for stored, wanted in (
        (load_weights(folder), before.weights),
        (load_moments(folder), before.moments),
    ):
        assert stored.keys() == wanted.keys()
        assert all(torch.equal(stored[name], value) for name, value in wanted.items())
    assert not torch.equal(model.weight, before.weights["weight"])


@pytest.mark.parametrize("size", [0, 64, 600])
def test_a_full_disk_is_raised_by_the_next_wait_and_at_the_end_and_leaves_what_was_there(
    size, tmp_path
):
    save(tmp_path, step=5)
    before = contents(tmp_path)
    snapshot = take_snapshot(*trained())
    with no_file_longer_than(size):
        with CheckpointWriter(tmp_path, keep=1) as writer:
            writer.save(snapshot, STATE)
            complaint = "step-00000007 cannot be written .* the checkpoints before it are intact"
            with pytest.raises(JobFailedError, match=complaint):
                writer.wait()
            assert not writer.has_failed  # it is raised once
        with pytest.raises(JobFailedError), CheckpointWriter(tmp_path, keep=1) as writer:
            writer.save(snapshot, STATE)
    assert contents(tmp_path) == before
    save(tmp_path, step=7)
    assert steps_of(tmp_path) == [5, 7]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_not_written(value, tmp_path):
    save(tmp_path)
    model = make_model()
    with torch.no_grad():
        model[2].bias.fill_(value)
    with pytest.raises(DivergedError, match=r"2\.bias is not finite after step 8, so no check"):
        save_checkpoint(
            tmp_path, take_snapshot(model, make_optimizer(model)), replace(STATE, step=8)
        )
    assert steps_of(tmp_path) == [7]


# --- A run's folder: what is written comes back, and what does not fit is refused -----------------


def test_a_run_needs_nothing_but_its_folder_and_a_checkpoint_with_finite_weights(tmp_path):
    model = BertForPretraining(TINY, seed=5)
    run = write_small_run(tmp_path / "run", model, small_tokenizer(), max_seq_length=16)
    run = run.rename(tmp_path / "moved")
    config, tokenizer, weights = load_run(run)
    assert config.model == TINY
    assert tokenizer.digest == small_tokenizer().digest
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    folder = latest_checkpoint(run)
    weights["nsp_head.bias"][0] = torch.nan
    save_file(weights, folder / "model.safetensors")
    state = json.loads((folder / "state.json").read_text())
    state["files"]["model.safetensors"] = file_sha256(folder / "model.safetensors")
    (folder / "state.json").write_text(json.dumps(sealed(state)))
    with pytest.raises(InputError, match=r"weights that are not finite \(nsp_head.bias\)"):
        load_run(run)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="has no checkpoint yet"):
        load_run(run)
