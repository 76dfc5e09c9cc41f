"""Two real processes are one: the same global batches, and a loss that differs by rounding.

With DDP, with FSDP2, and with one process that accumulates; and each of them goes on from the
checkpoints of the others, moments included. Dropout is off: what is dropped is drawn by each
process for its own part.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import islice, permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.pipeline.common.errors import InputError, LostProcessError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    load_moments,
    load_weights,
    read_state,
)
from clozeline.train.artifacts.run import TENSORBOARD
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import Order
from clozeline.train.engine import distributed
from clozeline.train.engine.attempt_store import attempt_store
from clozeline.train.engine.distributed import join_world
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import go_back, numbers, train
from tests.support.two_processes import MODEL, STEPS_BETWEEN_SYNCS, run_jobs
from tests.support.waiting import free_port

#: 18 steps cross two borders of epochs; each of two processes makes two passes of two examples.
OPTIONS = {"max_steps": 18, "save_every": 6, "eval_every": 9, "micro_batch_size": 2}
#: Batches of like length without padding, over two borders of epochs.
FORMS = {"max_steps": 16, "length_bins": 3, "unpadded": True, "micro_batch_size": 2}
VECTORS = {"max_steps": 4, "word_vectors": True, "sampled_words": 12, "micro_batch_size": 2}
#: A sharded model converts its weights itself; an untied decoder is a shard of its own.
BF16 = {"max_steps": 8, "precision": "bf16", "sampled_words": 12}
UNTIED = {"tie_word_embeddings": False}
#: At a rate at which an update of each process's rows alone would be another one.
MUON = {"max_steps": 8, "save_every": 4, "optimizer": "muon", "learning_rate": 0.02}
THREE = {"num_hidden_layers": 3}  # one process computes two updates of a shape, the other one
STOPS = {"max_steps": 8, "eval_every": 4, "save_every": 0, "micro_batch_size": 2}
ENDLESS = {"max_steps": 1_000_000, "save_every": 0, "log_every": 1_000_000}
EXACT = ("step", "data_digest", "learning_rate", "heldout/examples")
#: A run that begins as the first of these and goes on as the second, after step 12.
CHANGES = list(permutations(("one", "ddp", "fsdp"), 2))
#: A run, and the one of one process whose numbers it has.
SAME = [
    *(("ddp", "one"), ("fsdp", "one"), ("one-pass", "one"), ("disk-0/run", "one")),
    *((f"{before}-{after}", "one") for before, after in CHANGES),
    *((name, f"{name}-one") for name in ("forms", "vectors")),
]
#: Batches of 8, in pools of a shard of 120 rows: damage in the second one is met after 15 steps.
DAMAGED = {"max_steps": 60, "save_every": 0, "eval_every": 0, "length_bins": 1}
#: Which of two processes has a bad shard.
BAD = [(0, "fsdp"), (1, "ddp")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """57 examples of up to 32 tokens, of which one to five are masked."""
    config = replace(SMALL, max_seq_length=32, max_predictions_per_seq=5)
    shards = tmp_path_factory.mktemp("ragged")
    return write_data_set(shards, train=(13, 20, 0, 7, 17), validation=(9, 14), config=config)


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """A folder of the runs `one`, `ddp` and `fsdp`, and of `ddp-fsdp` and so on."""
    runs, jobs = tmp_path_factory.mktemp("runs"), []

    def job(name, changes, **more):
        jobs.append({"shards": folder, "out": runs / name, "changes": changes, **more})

    def shards_of_ranks(name, whole, bad, spoil, file):
        """A copy of the data set for each rank, of which one is spoiled."""
        for rank in (0, 1):
            shutil.copytree(whole, runs / f"{name}-{rank}")
        spoil(runs / f"{name}-{bad}" / file)
        return {"shards": runs / f"{name}-{{rank}}"}

    train(folder, runs / "one", model=MODEL, **OPTIONS)
    train(folder, runs / "one-pass", model=MODEL, **OPTIONS | {"micro_batch_size": None})
    others = {"forms": FORMS, "vectors": VECTORS}
    for name, changes in others.items():
        train(folder, runs / f"{name}-one", model=MODEL, **changes)
    train(folder, runs / "bf16-one", model=replace(MODEL, **UNTIED), **BF16)
    train(folder, runs / "muon-one", model=replace(MODEL, **THREE), **MUON)
    for kind in ("ddp", "fsdp"):
        job(kind, {**OPTIONS, "parallel": kind})
    for before, after in CHANGES:
        if after != "one":
            changes = {**OPTIONS, "parallel": after}
            job(f"{before}-{after}", changes, copy_of=runs / before, step=12)
    job("ddp", {**OPTIONS, "max_steps": 3})
    job("forms", FORMS)
    job("vectors", {**VECTORS, "parallel": "fsdp"})
    job("bf16", {**BF16, "parallel": "fsdp"}, model=UNTIED)
    for kind in ("ddp", "fsdp"):
        job(f"muon-{kind}", {**MUON, "parallel": kind}, model=THREE)
        resumed = {"copy_of": runs / "muon-one", "step": 4, "model": THREE}
        job(f"muon-{kind}-resumed", {**MUON, "parallel": kind}, **resumed)
    config = read_manifest(folder).config
    whole = write_data_set(runs / "whole", train=(40,), validation=(60, 14), config=config)
    (runs / "others-0").symlink_to(folder)
    (runs / "others-1").symlink_to(whole)
    job("others", {"max_steps": 1}, shards=runs / "others-{rank}")
    long = write_data_set(runs / "long", train=(120, 120), config=config)
    digest = read_manifest(long).dataset_digest
    order = Order([120, 120], dataset_digest=digest, seed=0, pool_rows=120)
    second = f"train-0000{order.locate(np.array([120])).shards[0]}-of-00002.arrow"
    for bad, kind in BAD:
        file = "validation-00001-of-00002.arrow"
        damaged = shards_of_ranks(f"damaged-{bad}", whole, bad, zero_bytes, file)
        job(f"bad-{bad}-{kind}", {**STOPS, "parallel": kind}, **damaged)
        damaged = shards_of_ranks(f"damaged-train-{bad}", long, bad, zero_bytes, second)
        job(f"bad-train-{bad}-{kind}", {**DAMAGED, "parallel": kind}, **damaged, pool_rows=120)
    job("stopped", ENDLESS, signal=["SIGTERM", 5])
    for rank in (0, 1):
        (runs / f"disk-{rank}").mkdir()
    on_one_disk = {"folder": runs / "disk-{rank}", "copy_of": runs / "fsdp", "step": 12}
    job("on-one-disk", {**OPTIONS, "parallel": "fsdp"}, **on_one_disk, out="run")
    run_jobs(jobs, runs)
    for before in ("ddp", "fsdp"):
        run = go_back(shutil.copytree(runs / before, runs / f"{before}-one"), 12)
        train(folder, run, model=MODEL, resume=True, **OPTIONS)
    return runs


def zero_bytes(file):
    file.write_bytes(bytes(file.stat().st_size))


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


def test_the_parts_of_two_processes_are_unequal(folder):
    """In masked words and in real tokens: so the mean of the parts' means is not the loss."""
    loaders = [Loader(folder, batch_size=8, rank=r, world_size=2, seed=0) for r in (0, 1)]
    parts = [[loaded.batch for loaded in islice(loader, 18)] for loader in loaders]
    for name in ("masked_lm_weights", "attention_mask"):
        sums = [[batch.tensors()[name].sum().item() for batch in part] for part in parts]
        assert sum(a != b for a, b in zip(*sums, strict=True)) > 7


@pytest.mark.parametrize(("found", "wanted"), SAME)
def test_two_processes_train_as_one_does(found, wanted, runs):
    assert_same_training(numbers(runs / found), numbers(runs / wanted))


def test_these_runs_have_all_of_their_steps(runs):
    """Otherwise the comparison above would prove nothing."""
    trained = [line["step"] for line in numbers(runs / "one") if "mlm_loss" in line]
    assert trained == list(range(1, 19))


def test_a_sharded_model_in_bf16_trains_as_autocast_does(runs):
    """Its norms and the sums between its layers are in bfloat16, too, so it is not the same."""
    found, wanted = numbers(runs / "bf16"), numbers(runs / "bf16-one")
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.get("data_digest") == theirs.get("data_digest")
        for name in {"mlm_loss", "nsp_loss", "heldout/mlm_loss"} & theirs.keys():
            assert ours[name] == pytest.approx(theirs[name], rel=0.02)
    weights = load_weights(latest_checkpoint(runs / "bf16"))
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    "name", [f"muon-{x}" for x in ("ddp", "fsdp", "ddp-resumed", "fsdp-resumed")]
)
def test_muon_of_two_processes_updates_matrices_as_one_does(name, runs):
    assert_same_updates(runs / name, runs / "muon-one")
    moments = [load_moments(latest_checkpoint(runs / run)) for run in (name, "muon-one")]
    shapes = [{key: value.shape for key, value in part.items()} for part in moments]
    assert shapes[0] == shapes[1]


def assert_same_updates(ours, theirs):
    """To rounding: where a CPU has bfloat16 products, each update is rounded to that."""
    found, wanted = moved(ours), moved(theirs)
    assert found.keys() == wanted.keys()
    for key, way in wanted.items():
        if key.startswith("encoder.layers.") and way.ndim == 2:
            assert torch.linalg.norm(found[key] - way) < 0.2 * torch.linalg.norm(way), key


def moved(run):
    """How far each weight came from the first checkpoint to the last one."""
    first, last = map(load_weights, list_checkpoints(run))
    return {name: value - first[name] for name, value in last.items()}


def test_more_processes_than_gpus_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    said = "no GPU of its own: there are 2; give torchrun --nproc-per-node 2"
    with pytest.raises(InputError, match=said), join_world():
        pass


def test_ranks_with_different_data_sets_all_refuse(runs, folder):
    """As after a copy to the machine of one of them that is older than the others."""
    said = [(runs / f"others.refused.{rank}").read_text() for rank in (0, 1)]
    here, there = (read_manifest(x).dataset_digest[:12] for x in (folder, runs / "whole"))
    assert f"data sets: rank 0 reads {here}. All ranks must read the same shards" in said[0]
    assert f"rank 0 reads {here}, rank 1 reads {there}." in said[1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_processes_is_one_of_one(kind, runs):
    """The same names, shapes and types, and to rounding the same weights and moments."""
    for ours, theirs in zip(
        *(list_checkpoints(runs / name) for name in (kind, "one")), strict=True
    ):
        for load in (load_weights, load_moments):
            found, wanted = load(ours), load(theirs)
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5, msg=name)


def test_only_rank_0_needs_the_checkpoint(runs):
    """The machine of rank 1 has no such folder."""
    assert not list((runs / "disk-1").iterdir())


def test_only_one_of_two_processes_writes(runs):
    files = [
        {x.relative_to(run) for x in run.rglob("*") if x.parent.name != TENSORBOARD}
        for run in (runs / "one", runs / "ddp", runs / "fsdp")
    ]
    assert files[0] == files[1] == files[2]
    assert len(list((runs / "ddp" / "tensorboard").iterdir())) == 1


def test_what_is_refused_is_said_once_and_ends_all(runs):
    said = [(runs / f"ddp.refused.{rank}").read_text() for rank in (0, 1)]
    assert said[0].startswith("InputError ")
    assert "step 18, beyond --max-steps 3" in said[0]
    assert said[1] == "SystemExit 2"


def test_a_stop_request_to_one_of_two_processes_stops_both(runs):
    """They agree within so many steps; else this test would not end."""
    state = read_state(latest_checkpoint(runs / "stopped"))
    assert 5 <= state.step <= 5 + 2 * STEPS_BETWEEN_SYNCS
    assert state.loader["next_position"] == 8 * state.step
    assert not (runs / "stopped" / "summary.json").exists()


@pytest.mark.parametrize(("bad", "kind"), BAD)
def test_a_bad_held_out_shard_of_one_of_two_processes_stops_both_and_loses_nothing(bad, kind, runs):
    """It is met after eight forward passes of each; the other process ends with the same code."""
    out = runs / f"bad-{bad}-{kind}"
    said = [Path(f"{out}.refused.{rank}").read_text() for rank in (bad, 1 - bad)]
    assert "validation-00001-of-00002.arrow is damaged" in said[0]
    assert said[1] == "SystemExit 2"
    assert read_state(latest_checkpoint(out)).step == 4
    assert not (out / "summary.json").exists()


@pytest.mark.parametrize(("bad", "kind"), BAD)
def test_a_bad_training_shard_of_one_of_two_processes_costs_no_steps(bad, kind, runs):
    """It is known before its rows are needed, so both processes save after the step before them."""
    out = runs / f"bad-train-{bad}-{kind}"
    said = [Path(f"{out}.refused.{rank}").read_text() for rank in (bad, 1 - bad)]
    assert said[0].startswith("CorruptDataError")
    assert said[1] == "SystemExit 2"
    state = read_state(latest_checkpoint(out))
    assert (state.step, state.loader["next_position"]) == (15, 120)


def test_processes_of_a_new_attempt_do_not_meet_those_of_an_earlier_one(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    kept = torch.distributed.HashStore()  # by torchrun's agent, for all attempts

    def meet(rank):
        return attempt_store(kept, rank, 3, patience=timedelta(seconds=60))

    for attempt in ("1", "2"):
        with ThreadPoolExecutor(3) as ranks:
            stores = list(ranks.map(meet, (2, 1, 0)))  # 2 and 1 first read the earlier prefix
        assert not any(store.check(["address"]) for store in stores)
        stores[0].set("address", attempt)
        assert [store.get("address") for store in stores] == [attempt.encode()] * 3
    with pytest.raises(torch.distributed.DistStoreError, match="rank 0 did not answer"):
        attempt_store(kept, 1, 3, patience=timedelta(seconds=0.3))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert attempt_store(kept, 1, 3, patience=timedelta(0)) is kept


@pytest.mark.slow
def test_after_a_failure_torchrun_goes_on_by_itself(folder, tmp_path):
    """The second attempt begins at the checkpoint of the first."""
    changes = {**OPTIONS, "max_steps": 50, "save_every": 20, "eval_every": 25}
    job = {"shards": folder, "out": tmp_path / "run", "signal": ["SIGKILL", 60], "resume": True}
    run_jobs([{**job, "changes": changes}], tmp_path, "--max-restarts=3")
    train(folder, tmp_path / "one", model=MODEL, **changes)
    assert_same_training(numbers(tmp_path / "run"), numbers(tmp_path / "one"))


@pytest.mark.slow
def test_four_processes_go_on_from_two_and_two_and_one_from_four(runs, folder, tmp_path):
    job = {"shards": folder, "changes": OPTIONS}
    four = {"copy_of": runs / "ddp", "step": 6}
    fsdp = {"changes": {**OPTIONS, "parallel": "fsdp"}, "machine": 2}  # on two machines of two
    muon = {"changes": {**MUON, "parallel": "fsdp"}, "machine": 2, "model": THREE}
    jobs = [
        {**job, **four, "out": tmp_path / "four"},
        {**job, **four, **fsdp, "out": tmp_path / "hybrid"},
        {**job, **muon, "out": tmp_path / "muon"},
    ]
    run_jobs(jobs, tmp_path, "--nproc-per-node=4")
    assert_same_updates(tmp_path / "muon", runs / "muon-one")
    two = {"copy_of": tmp_path / "four", "step": 12, "out": tmp_path / "two"}
    run_jobs([{**job, **two}], tmp_path)
    one = go_back(shutil.copytree(tmp_path / "four", tmp_path / "one"), 12)
    train(folder, one, model=MODEL, resume=True, **OPTIONS)
    for name in ("four", "hybrid", "two", "one"):
        assert_same_training(numbers(tmp_path / name), numbers(runs / "one"))


def test_processes_that_do_not_meet_end_in_one_line(monkeypatch):
    port = free_port()
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    moment = timedelta(seconds=1)
    monkeypatch.setattr(distributed, "MEETING", moment)
    expected = rf"the 2 processes did not meet at 127.0.0.1:{port} \(Timed out .* start all"
    with pytest.raises(LostProcessError, match=expected), join_world(patience=moment):
        pass
