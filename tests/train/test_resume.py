"""A run that was stopped, killed or out of disk resumes as if nothing had happened.

That is meant literally: every number of every step, and the bytes of the last checkpoint. Dropout
is on, the learning rate changes with each step, and the 12 steps cross into the second epoch, which
has masks of its own.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from clozeline.pipeline.common.errors import STOPPED, InputError
from clozeline.train.artifacts.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    read_state,
    step_of,
)
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.pretraining import trainer
from tests.support.command import invoke, output_of, refused
from tests.support.files import contents, no_file_longer_than
from tests.support.small_jobs import ROOT
from tests.support.small_training import (
    assert_same_run,
    command_line,
    go_back,
    numbers,
    preset_of,
    train,
)


def finish(shards, run):
    return train(shards, run, eval_every=6, resume=True)


@pytest.mark.parametrize("step", [0, 4, 8])
def test_from_any_checkpoint_on_it_is_the_same_run(step, run, finished, small_folder):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "mlm_l')
    finish(small_folder, go_back(run, step))
    assert_same_run(run, finished)


#: Options of a run, in a resumed command where the command line takes a value.
OPTIONS = {
    "lines of five steps": {"log_every": 5},  # at 10 it is the mean of steps 6 to 10
    "muon": {"optimizer": "muon", "learning_rate": 2e-3, "weight_decay": 0.1},
    "sampled words": {"sampled_words": 20},
    "word vectors": {"word_vectors": True},  # those of the checkpoint, not new ones
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_any_options_it_is_the_same_run(options, small_folder, tmp_path):
    whole = tmp_path / "whole"
    train(small_folder, whole, model=preset_of(small_folder), **options)
    run = go_back(shutil.copytree(whole, tmp_path / "run"), 8)
    output_of(*command_line(small_folder, run, "--resume", **options))
    assert_same_run(run, whole)
    assert options.items() <= vars(read_run(run).training).items()


def test_a_logged_loss_is_the_mean_since_the_line_before(finished, small_folder, tmp_path):
    """The same run with one line for each step."""
    train(small_folder, tmp_path, log_every=4, eval_every=6)
    every_step = {line["step"]: line for line in numbers(finished) if "mlm_loss" in line}
    lines = [line for line in numbers(tmp_path) if "mlm_loss" in line]
    assert [line["step"] for line in lines] == [1, 4, 8, 12]
    steps = {line["step"]: every_step[line["step"]] for line in lines}
    assert lines[0] == steps[1]
    batches = islice(Loader(small_folder, batch_size=8, seed=0), 12)
    weights = [
        {"mlm_loss": batch.num_predictions, "nsp_loss": batch.num_pairs} for batch in batches
    ]
    for before, line in pairwise(lines):
        since = range(before["step"] + 1, line["step"] + 1)
        for name in ("mlm_loss", "nsp_loss"):
            losses = [every_step[step][name] for step in since]
            mean = np.average(losses, weights=[weights[step - 1][name] for step in since])
            assert line[name] == pytest.approx(mean, rel=1e-12)
        for name in ("mlm_accuracy", "nsp_accuracy", "nsp_pairs", "data_digest", "gradient_norm"):
            assert line[name] == steps[line["step"]][name]


def test_a_half_written_checkpoint_is_ignored_and_removed(run, finished, small_folder):
    newest = latest_checkpoint(go_back(run, 8))
    (newest / "state.json").unlink()
    newest.rename(newest.with_name(".step-00000008.ab12.partial"))
    assert finish(small_folder, run).is_complete
    assert_same_run(run, finished)
    assert [path.name for path in list_checkpoints(run)[0].parent.glob(".*")] == []


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(
    run, finished, small_folder, capsys
):
    newest = latest_checkpoint(go_back(run, 8))
    damaged = newest / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    before = contents(newest)
    finish(small_folder, run)
    said = capsys.readouterr().err.splitlines()[0]
    assert f"{damaged} cannot be read" in said
    assert "set aside as damaged-step-00000008; training resumes from step 4." in said
    assert_same_run(run, finished)
    assert contents(newest.with_name("damaged-step-00000008")) == before


def test_a_refused_command_leaves_a_damaged_checkpoint_in_place(run, small_folder):
    newest = latest_checkpoint(go_back(run, 8))
    (newest / "state.json").write_bytes(b"")
    before = sorted(run.rglob("*"))
    with pytest.raises(InputError, match=r"holds a run at step 4\. Give --resume to continue"):
        train(small_folder, run, eval_every=6)
    assert sorted(run.rglob("*")) == before


def test_where_no_checkpoint_is_intact_no_new_run_is_started(run, small_folder):
    for folder in list_checkpoints(run):
        (folder / "optimizer.safetensors").write_bytes(b"")
    before = sorted(run.rglob("*"))
    said = refused(*command_line(small_folder, run, "--resume", preset=None, eval_every=6))
    assert f"{run} has no intact checkpoint" in said
    assert sorted(run.rglob("*")) == before


@contextmanager
def stop_requested_in(forward, *, training):
    """A signal to this process in the middle of the N-th forward pass of the finished model."""
    passes = 0

    def count(module, *_):
        nonlocal passes
        is_counted = type(module).__name__ == "BertForPretraining" and module.training == training
        passes += is_counted
        if is_counted and passes == forward:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        yield
    finally:
        hook.remove()


def test_a_stop_request_during_a_step_finishes_that_step_and_saves(run, finished, small_folder):
    line = command_line(small_folder, go_back(run, 4), "--resume", preset=None, eval_every=6)
    with stop_requested_in(1, training=True):
        stopped = invoke(*line)
    assert stopped.exit_code == STOPPED == 75
    assert stopped.stdout == (
        "Stopped at step 5 of 12; checkpoint saved. Add `--resume` to continue.\n"
    )
    assert not (run / "summary.json").exists()
    with stop_requested_in(1, training=True):
        outcome = finish(small_folder, run)
    assert (outcome.step, outcome.is_complete) == (6, False)
    assert [line["step"] for line in numbers(run)] == [1, 2, 3, 4, 5, 6]  # and no evaluation
    finish(small_folder, go_back(run, 5))
    assert_same_run(run, finished)


def test_before_the_first_step_a_stop_request_ends_in_one_line(small_folder, tmp_path):
    run, main = tmp_path / "run.json", threading.main_thread().ident
    before = signal.getsignal(signal.SIGTERM)
    os.mkfifo(run)

    def send():
        with run.open("wb", buffering=0) as file:
            file.write(bytes(1 << 20))  # more than a pipe holds: the command is reading it
            signal.pthread_kill(main, signal.SIGTERM)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    stopped = invoke(*command_line(small_folder, tmp_path))
    sender.join(60)
    assert stopped.exit_code == STOPPED
    assert stopped.output == "Stopped. Add `--resume` to continue.\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_stop_request_during_an_evaluation_does_not_wait_for_its_end(small_folder, tmp_path):
    options = {"model": preset_of(small_folder), "batch_size": 1, "eval_every": 6}
    with stop_requested_in(3, training=False):
        outcome = train(small_folder, tmp_path, **options)
    assert (outcome.step, outcome.is_complete, outcome.heldout) == (6, False, None)
    assert read_state(latest_checkpoint(tmp_path)).heldout_loss is None
    assert numbers(tmp_path)[-1]["step"] == 6
    assert train(small_folder, tmp_path, resume=True, **options).is_complete


def test_stopped_in_the_last_evaluation_it_evaluates_again_when_resumed(
    run, finished, small_folder, monkeypatch
):
    monkeypatch.setattr(trainer, "STOP_CHECK_EVERY", 1)  # of three batches
    with stop_requested_in(1, training=False):
        outcome = finish(small_folder, go_back(run, 8))
    assert (outcome.step, outcome.is_complete) == (12, False)
    assert finish(small_folder, run).heldout is not None
    assert numbers(run) == numbers(finished)


def test_another_batch_size_resumes_at_the_very_next_example(run, small_folder):
    more = {"resume": True, "max_steps": 9, "batch_size": 19}
    train(small_folder, go_back(run, 8), **more)
    assert read_state(latest_checkpoint(run)).loader["next_position"] == 64 + 19
    batches = Loader(small_folder, batch_size=19, seed=0)
    batches.load_state_dict(batches.state_dict(64))
    line = next(line for line in numbers(run) if line["step"] == 9)
    assert line["data_digest"] == digest_text(next(iter(batches)).digest)


#: `clozeline`, which dies at the first event of a kind (see sys.audit) with such a path.
KILLED_AT = """
import os, signal, sys
from clozeline.train.cli import main
event, ending = sys.argv[1:3]
def kill(name, arguments):
    if name == event and any(str(argument).endswith(ending) for argument in arguments):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("event", "path"),
    [
        ("os.rename", "/step-00000008"),  # all is written, and has no name yet
        pytest.param("open", ".partial/optimizer.safetensors", marks=pytest.mark.slow),  # for sync
    ],
)
def test_killed_while_it_saves_it_loses_that_checkpoint_only(
    event, path, run, finished, small_folder
):
    line = command_line(small_folder, go_back(run, 4), "--resume", preset=None, eval_every=6)
    code = [sys.executable, "-c", KILLED_AT, event, path, *line]
    killed = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [read_state(folder).step for folder in list_checkpoints(run)] == [4]
    assert len(list((run / "checkpoints").glob(".step-00000008.*.partial"))) == 1
    finish(small_folder, run)
    assert_same_run(run, finished)


def test_a_full_disk_is_one_line_and_costs_no_checkpoint(run, finished, small_folder):
    go_back(run, 4)
    line = command_line(small_folder, run, "--resume", preset=None, eval_every=6)
    with no_file_longer_than(80_000):
        full = invoke(*line)
    assert full.exit_code == 1
    assert isinstance(full.exception, SystemExit)
    complaint = full.stderr.splitlines()[-1]
    assert f"checkpoint {run / 'checkpoints' / 'step-00000008'} cannot be written" in complaint
    assert [read_state(folder).step for folder in list_checkpoints(run)] == [4]
    finish(small_folder, run)
    assert_same_run(run, finished)


def test_it_keeps_its_numbers_its_architecture_and_its_origin(small_folder, tmp_path):
    """The recipe and the options of then are not needed again, and a longer run is one option."""
    run, again = tmp_path / "run", tmp_path / "again"
    line = ["pretrain", small_folder, "--batch-size", 8, "--preset", "bert-tiny"]
    options = ["--dropout", 0, "--seed", 3, "--save-every", 1, "--keep", 3, "--unpadded"]
    options += ["--set=hidden_size=64", "--set=intermediate_size=96", "--learning-rate", 3e-3]
    output_of(*line, "--out", run, *options, "--max-steps", 3)
    stored = json.loads((run / "run.json").read_bytes())["training"]
    assert (stored["learning_rate"], stored["beta2"]) == (3e-3, 0.999)
    assert stored["precision"] in ("bf16", "fp32")  # of this device, not "auto"
    bare = ["pretrain", small_folder, "--out", run]
    assert output_of(*bare) == f"already complete: step 3 of 3: {run}\n"
    output_of(*bare, "--resume", "--max-steps", 4)
    before = (run / "run.json").read_bytes()
    assert json.loads(before)["training"] == stored | {"max_steps": 4}
    shutil.rmtree(list_checkpoints(run)[-1])
    output_of(*line, "--out", run, *options, "--max-steps", 4, "--resume")
    assert (run / "run.json").read_bytes() == before  # given again or not
    assert [step_of(folder) for folder in list_checkpoints(run)[-3:]] == [2, 3, 4]
    found = read_run(run)
    assert found.options["pretrain"]["set"] == ["hidden_size=64", "intermediate_size=96"]
    training = found.training
    assert (training.save_every, training.keep, training.seed, training.unpadded) == (1, 3, 3, True)
    output_of("pretrain", "--config", run / "run.json", "--out", again)
    assert (read_run(again).model, read_run(again).training) == (found.model, training)
    assert found.model.hidden_size == 64


def test_before_its_first_checkpoint_its_first_weights_have_to_be_given(small_folder, tmp_path):
    first, run = tmp_path / "first", tmp_path / "run"
    line = ["pretrain", small_folder, "--max-steps", 1, "--batch-size", 8, "--out"]
    output_of(*line, first, "--preset", "bert-tiny")
    output_of(*line, run, "--from", first)
    shutil.rmtree(run / "checkpoints")
    assert "repeat its --from, or give --overwrite" in refused(*line, run, "--resume")
    output_of(*line, run, "--resume", "--from", first)
    assert read_run(run).started_from is not None
