"""Two real processes are one: the same global batches, and a loss that differs by rounding.

Dropout is off: what is dropped is drawn by each process for its own part.
"""

import shutil
import subprocess
import sys

import pytest
import torch

from tests.small_jobs import ROOT
from tests.small_training import command_line, go_back, numbers, preset_of, train
from train.checkpoint import list_checkpoints, read_state
from train.distributed import World, is_main_process, join_world

#: 20 steps cross two borders of epochs; each process makes two passes of two examples a step.
OPTIONS = {"max_steps": 20, "save_every": 8, "eval_every": 10, "micro_batch_size": 2}
EXACT = ("step", "data_digest", "learning_rate", "heldout/examples")


def two_processes(*line):
    """`clozeline` under torchrun; what rank 0, or whoever talks, prints."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "train", *line], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def one_process(shards, out, *, resume=False):
    train(shards, out, model=preset_of(shards, dropout=0.0), resume=resume, **OPTIONS)
    return out


@pytest.fixture(scope="module")
def one(small_folder, tmp_path_factory):
    return one_process(small_folder, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(small_folder, tmp_path_factory):
    """The folder of the run, and what was printed."""
    out = tmp_path_factory.mktemp("two")
    return out, two_processes(*command_line(small_folder, out, "--dropout=0", **OPTIONS))


def assert_same_training(found, wanted):
    """Line by line: the data exactly, the numbers to rounding."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            if name in EXACT:
                assert ours[name] == value
            else:
                tolerance = 2e-6 if name.endswith("_loss") else 1e-4
                assert ours[name] == pytest.approx(value, rel=tolerance), f"{name} of {theirs}"


def test_two_processes_train_as_one_does(one, two):
    lines = numbers(one)
    assert [line["step"] for line in lines if "mlm_loss" in line] == list(range(1, 21))
    assert_same_training(numbers(two[0]), lines)


def test_only_one_of_two_processes_writes_and_talks(one, two):
    out, printed = two
    assert len(list((out / "tensorboard").iterdir())) == 1
    assert printed.splitlines()[0] == "23 held-out examples"
    assert printed.count(f"step 20 of 20: {out}\n") == printed.count("step") == 1
    files = {path.relative_to(out) for path in out.rglob("*") if path.parent.name != "tensorboard"}
    assert files == {
        path.relative_to(one) for path in one.rglob("*") if path.parent.name != "tensorboard"
    }


def test_one_goes_on_where_two_stopped(two, small_folder, tmp_path):
    out, _ = two
    run = go_back(shutil.copytree(out, tmp_path / "run"), 8)
    one_process(small_folder, run, resume=True)
    assert_same_training(numbers(run), numbers(out))


def test_two_go_on_where_one_stopped(one, small_folder, tmp_path):
    run = go_back(shutil.copytree(one, tmp_path / "run"), 16)
    two_processes(*command_line(small_folder, run, "--resume", "--dropout=0", **OPTIONS))
    assert_same_training(numbers(run), numbers(one))
    states = [[read_state(folder) for folder in list_checkpoints(out)] for out in (run, one)]
    assert [state.next_position for state in states[0]] == [64, 128, 160]
    for ours, theirs in zip(*states, strict=True):
        assert vars(ours) == vars(theirs) | {"heldout_loss": pytest.approx(theirs.heldout_loss)}


def test_alone_there_is_nobody_to_wait_for():
    world = World(0, 1, torch.device("cpu"))
    values = torch.tensor([1.0, 2.0])
    assert world.sum(values) is values
    assert values.tolist() == [1.0, 2.0]
    assert world.any(True)
    assert not world.any(False)
    assert world.is_main
    world.wait()


def test_without_torchrun_the_world_is_one_process(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join_world() as world:
        assert (world.rank, world.size) == (0, 1)
    assert is_main_process()


def test_the_process_that_talks_is_known_before_the_world_is_joined(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert not is_main_process()
