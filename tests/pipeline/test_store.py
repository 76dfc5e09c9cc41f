"""Shards in a store: fetched in parallel and once; and one process writes a folder there."""

import json
import os
import threading
import time
from itertools import islice
from unittest.mock import Mock

import numpy as np
import pytest

from clozeline.pipeline.common import folder_lock, paths
from clozeline.pipeline.common.errors import (
    CorruptDataError,
    InputError,
    JobFailedError,
    StoreError,
)
from clozeline.pipeline.common.folder_lock import LEASE, Lease, locked_folder
from clozeline.pipeline.common.folders import wrong_folder
from clozeline.pipeline.common.paths import is_file, path_of, remove_named, sizes_in
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import Order
from clozeline.train.data.prefetch import FETCHES, OpenShards
from clozeline.train.data.shard_set import ShardSet
from tests.pipeline.test_job import shards
from tests.support.command import refused
from tests.support.failing_store import failing_folder
from tests.support.small_data import write_data_set

FIRST = "train-00000-of-00002.arrow"


class HttpError(Exception):
    """What stores raise is not always an OSError."""


UNAVAILABLE = HttpError("503 Service Unavailable")
FAILURES = [
    FileNotFoundError("404 Not Found"),
    PermissionError("403 Forbidden"),
    UNAVAILABLE,
    TimeoutError(),
]


@pytest.fixture
def folder(monkeypatch):
    monkeypatch.setattr(paths, "PAUSES", (0.0, 0.0))
    folder = failing_folder("store-tests")
    folder.mkdir()
    yield folder
    folder.fs.reset()
    folder.rmdir(recursive=True)


def read_first(folder):
    return len(ShardSet(folder, "train").read(0))


def read_tokenizer(folder):
    return load_tokenizer(folder / "tokenizer").digest


@pytest.mark.parametrize(
    ("requests", "name", "read", "failure"),
    [
        *(("failures", FIRST, read_first, failure) for failure in FAILURES),
        ("failures", "manifest.json", read_manifest, UNAVAILABLE),
        ("failures", "tokenizer.json", read_tokenizer, UNAVAILABLE),
        ("failures", "vocab.txt", read_tokenizer, UNAVAILABLE),
        ("info_failures", FIRST, lambda folder: is_file(folder / FIRST), UNAVAILABLE),
    ],
)
def test_what_a_store_does_not_answer_is_asked_again_and_then_named(
    folder, requests, name, read, failure
):
    write_data_set(folder, train=(13, 20))
    whole, failures = read(folder), getattr(folder.fs, requests)
    failures[name] = [failure] * 2
    assert read(folder) == whole
    failures[name] = [failure] * 3
    with pytest.raises(StoreError) as caught:
        read(folder)
    assert not isinstance(caught.value, InputError)
    assert f"/{name} cannot be used in its store, after 3 attempts" in str(caught.value)
    assert f"({type(failure).__name__}" in str(caught.value)
    assert str(failure) in str(caught.value)
    assert read(folder) == whole


def test_what_is_not_there_is_no_file_and_cannot_be_listed(folder):
    assert not is_file(folder / "gone")
    assert not is_file(folder)
    with pytest.raises(StoreError, match=r"/gone cannot be used .* 3 attempts .FileNotFound"):
        sizes_in(folder / "gone")


@pytest.mark.parametrize("command", ["report", "view", "inspect"])
def test_a_store_that_does_not_answer_is_not_a_path_that_does_not_exist(folder, command):
    write_data_set(folder, train=(13,))
    folder.fs.info_failures["manifest.json"] = [HttpError("503")] * 3
    said = refused(command, folder, code=1)
    assert said.startswith(f"{folder}/manifest.json cannot be used in its store, after 3 attempts")
    folder.fs.info_failures["gone"] = [HttpError("503")] * 3
    with pytest.raises(StoreError, match=r"/gone cannot be used in its store, after 3 attempts"):
        wrong_folder(folder / "gone", "a run")


def test_a_source_is_asked_for_again_and_then_named(folder):
    (folder / "a.txt").write_bytes(b"One.\n\nTwo.\n")
    [block] = list_blocks([str(folder / "a.txt")])
    folder.fs.info_failures["a.txt"] = [TimeoutError()] * 2  # it was not removed
    folder.fs.open_failures["a.txt"] = [HttpError("503")] * 2
    assert [chunk.texts for chunk in read_block(block)] == [["One.", "Two."]]
    folder.fs.open_failures["a.txt"] = [HttpError("503")] * 3
    with pytest.raises(StoreError, match=r"/a\.txt cannot be used in its store, after 3 attempts"):
        list(read_block(block))


def test_a_missing_file_does_not_keep_others_from_being_removed(folder):
    for name in ("a", "b"):
        (folder / name).write_bytes(b"1")
    remove_named(folder, ["a", "missing", "b"])
    assert not is_file(folder / "a")
    assert not is_file(folder / "b")


def test_damage_in_a_store_is_damage(folder):
    write_data_set(folder, train=(13, 20))
    data = bytearray((folder / FIRST).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / FIRST).write_bytes(bytes(data))
    folder.fs.reset()
    with pytest.raises(CorruptDataError, match=f"{FIRST} is damaged"):
        ShardSet(folder, "train").read(0)
    assert folder.fs.requests.count(FIRST) == 1


def shards_asked_for(folder):
    return [name for name in folder.fs.requests if name.startswith("train-")]


def test_shards_of_a_pool_are_fetched_in_parallel_and_not_too_many(folder):
    write_data_set(folder, train=(4,) * (2 * FETCHES))
    folder.fs.reset()
    folder.fs.gate = threading.Barrier(FETCHES)  # breaks if fewer are in flight for 30 seconds
    loaded = list(islice(Loader(folder, batch_size=8, seed=0), 2 * FETCHES // 2))
    assert len(loaded) == FETCHES
    assert folder.fs.most_in_flight == FETCHES
    assert sorted(shards_asked_for(folder)) == [x.name for x in read_manifest(folder).shards]


def test_each_rank_fetches_the_shards_of_its_streams_once_an_epoch(folder):
    rows = (9,) * 32
    write_data_set(folder, train=rows)
    manifest, world_size, n = read_manifest(folder), 4, sum(rows)
    numbers = {"seed": 0, "streams": 8, "pool_rows": 48}
    order = Order(rows, dataset_digest=manifest.dataset_digest, **numbers)
    for rank in range(world_size):
        folder.fs.reset()
        loader = Loader(
            folder, batch_size=8, rank=rank, world_size=world_size, prefetch=0, **numbers
        )
        assert len(list(islice(loader, n // 8))) == n // 8
        found = shards_asked_for(folder)
        mine = order.locate(np.arange(rank, n, world_size)).shards
        wanted = {manifest.shards[shard].name for shard in mine}
        assert set(found) == wanted
        assert len(found) <= len(wanted) + 2  # a shard in two streams of the rank
        assert len(found) <= 32 / world_size + 8 / world_size


def test_shards_ahead_are_fetched_before_they_are_asked_for():
    asked, arrived = [], threading.Barrier(4)

    def read(shard):
        asked.append(shard)
        arrived.wait(30)  # the two that are ahead, and the two that are wanted
        return shard

    with OpenShards(read) as shards:
        shards.keep([1, 2], ahead=[3, 4])
        assert [shards[1], shards[2]] == [1, 2]
        shards.keep([2, 3], ahead=[])
        assert shards[3] == 3
        assert sorted(asked) == [1, 2, 3, 4]


def test_it_can_be_closed_in_one_of_its_threads():
    """Where the garbage collector may run."""
    closed = threading.Event()

    def read(shard):
        shards.__exit__()
        closed.set()
        return shard

    shards = OpenShards(read)
    shards.keep([1], ahead=[])
    assert closed.wait(30)


def test_a_shard_that_could_not_be_read_ahead_is_read_when_it_is_asked_for():
    """A store that did not answer a while ago may answer by then, or fail again."""
    asked = []

    def read(shard):
        asked.append(shard)
        if shard == 4 or asked == [1, 2]:
            raise StoreError("the store is gone")
        return shard

    with OpenShards(read, threads=1) as shards:
        shards.keep([1], ahead=[2, 3, 4])
        assert [shards[3], shards[2]] == [3, 2]
        with pytest.raises(StoreError, match="is gone"):
            shards[4]
    assert asked[:3] == [1, 2, 3]
    assert {*asked[3:]} == {2, 4}


def test_without_threads_a_shard_is_read_when_it_is_asked_for():
    asked = []
    with OpenShards(lambda shard: asked.append(shard) or shard, threads=0) as shards:
        shards.keep([1, 2], ahead=[3])
        assert not asked
        assert [shards[2], shards[2]] == [2, 2]
    assert asked == [2]


# --- One process writes a folder in a store, whatever the clocks of the machines say --------------
OTHER = {"owner": "b", "pid": 7, "host": "other", "renewed": 1763.2}


@pytest.fixture
def leased(monkeypatch):
    """An empty folder in a store; a lease is renewed each second, and ends no process."""
    monkeypatch.setattr(folder_lock, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(folder_lock, "START_SECONDS", 0.0)
    monkeypatch.setattr(folder_lock, "STOP", 0)
    monkeypatch.setattr(paths, "PAUSES", (0.0,))
    leased = path_of("memory://lease-tests")
    leased.mkdir()
    yield leased
    leased.rmdir(recursive=True)


def write_lease(leased, **values):
    (leased / LEASE).write_text(json.dumps(OTHER | values))


def read_lease(leased):
    return json.loads((leased / LEASE).read_bytes())


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_lease_is_held_and_given_back(leased, is_kept):
    with Lease(leased, "a", is_kept=is_kept):
        assert read_lease(leased).items() >= {"owner": "a", "pid": os.getpid()}.items()
    assert (leased / LEASE).exists() == is_kept
    assert not is_kept or read_lease(leased)["renewed"] == 0
    with Lease(leased, "b", is_kept=is_kept):
        assert read_lease(leased)["owner"] == "b"


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_second_writer_is_refused_by_name_whatever_its_clock_says(
    leased, monkeypatch, capsys, hours
):
    right, here = time.time, threading.current_thread()
    with locked_folder(leased):
        monkeypatch.setattr(
            time, "time", lambda: right() + 3600 * hours * (threading.current_thread() is here)
        )
        second = locked_folder(leased)
        with pytest.raises(InputError, match=f"in use by process {os.getpid()} on .*, which has"):
            second.__enter__()
    assert "; waiting for up to 3 s" in capsys.readouterr().err
    assert not (leased / LEASE).exists()


@pytest.mark.parametrize("age", [-3600, 0, 3600])
def test_the_lease_of_a_lost_machine_ends(leased, monkeypatch, capsys, age):
    monkeypatch.setattr(folder_lock, "LEASE_SECONDS", 0.2)
    write_lease(leased, renewed=time.time() - age)
    with locked_folder(leased):
        assert read_lease(leased)["owner"] != OTHER["owner"]
    assert "was in use by process 7 on other; waiting" in capsys.readouterr().err


def test_of_two_that_start_at_once_one_is_refused(leased, monkeypatch):
    monkeypatch.setattr(folder_lock, "START_SECONDS", 0.5)
    together, both_know, outcomes = threading.Barrier(2), threading.Barrier(2), []

    def start():
        together.wait(30)
        try:
            with locked_folder(leased):
                outcomes.append("writes")
                both_know.wait(30)
        except InputError as error:
            outcomes.append("in use" if "is in use by process" in str(error) else str(error))
            both_know.wait(30)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["in use", "writes"]


def test_of_two_that_were_let_in_at_once_the_first_stops(leased, monkeypatch, capsys):
    """The lease of the second is not given back, or a third would be let in."""
    stopped = threading.Event()
    monkeypatch.setattr(os, "kill", lambda *_: stopped.set())

    def work_until_stopped():
        with Lease(leased, "a", is_kept=True):
            write_lease(leased)
            assert stopped.wait(30)

    with pytest.raises(JobFailedError, match="was taken over by process 7 on other"):
        work_until_stopped()
    assert "Error: memory://lease-tests was taken over by process 7" in capsys.readouterr().err
    assert read_lease(leased) == OTHER


def test_an_owner_may_be_several_processes_and_the_first_to_end_lets_no_other_in(leased):
    first, second = (Lease(leased, "job", is_kept=False) for _ in range(2))
    with second:
        with first:
            first.confirm()
            second._write()  # its renewal
        with pytest.raises(InputError, match="is in use by process"):
            Lease(leased, "other", is_kept=False).__enter__()
    assert not (leased / LEASE).exists()


def test_a_lease_that_another_process_of_its_owner_just_removed(leased, monkeypatch, capsys):
    with monkeypatch.context() as late, Lease(leased, "job", is_kept=False):
        late.setattr(type(leased.fs), "rm", Mock(side_effect=FileNotFoundError))
    assert capsys.readouterr().err == ""


def test_a_store_that_fails_for_a_while_ends_no_lease(monkeypatch, capsys):
    leased = failing_folder("lease-tests")
    monkeypatch.setattr(folder_lock, "LEASE_SECONDS", 0.03)
    monkeypatch.setattr(paths, "PAUSES", ())
    with Lease(leased, "a", is_kept=False):
        leased.fs.open_failures[LEASE] = [PermissionError("403")] * 3
        until = time.monotonic() + 30
        while leased.fs.open_failures[LEASE] and time.monotonic() < until:
            time.sleep(0.01)
    assert "warning: the lease of failing:///lease-tests: StoreError" in capsys.readouterr().err
    assert not (leased / LEASE).exists()


def test_a_data_set_in_a_store_has_one_writer(leased, tmp_path, monkeypatch):
    """A job that was killed is followed by the next one; one that goes on keeps others out."""
    write_lease(leased / "data")
    with monkeypatch.context() as soon:
        soon.setattr(folder_lock, "LEASE_SECONDS", 0.2)
        shards(tmp_path, out=leased / "data")
    there = leased.fs.find(leased.path)
    assert not any(name.endswith(LEASE) for name in there)
    with locked_folder(leased / "new"):
        with pytest.raises(InputError, match="new is in use by process"):
            shards(tmp_path, out=leased / "new")
        assert leased.fs.find(f"{leased.path}/new") == [f"{leased.path}/new/{LEASE}"]
