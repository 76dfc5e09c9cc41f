"""One process writes a folder in a store, whatever the clocks of the machines say."""

import json
import os
import threading
import time

import pytest

from clozeline.pipeline.common import store, store_lease
from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.common.store_lease import LEASE, Lease
from tests.pipeline.test_job import shards
from tests.support.failing_store import failing_folder

OTHER = {"owner": "b", "pid": 7, "host": "other", "renewed": 1763.2}


@pytest.fixture
def folder(monkeypatch):
    """An empty folder in a store; a lease is renewed each second, and ends no process."""
    monkeypatch.setattr(store_lease, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(store_lease, "START_SECONDS", 0.0)
    monkeypatch.setattr(store_lease, "STOP", 0)
    monkeypatch.setattr(store, "PAUSES", (0.0,))
    folder = path_of("memory://lease-tests")
    folder.mkdir()
    yield folder
    folder.rmdir(recursive=True)


def write_lease(folder, **values):
    (folder / LEASE).write_text(json.dumps(OTHER | values))


def read_lease(folder):
    return json.loads((folder / LEASE).read_bytes())


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_lease_is_held_and_given_back(folder, is_kept):
    with Lease(folder, "a", is_kept=is_kept):
        assert read_lease(folder).items() >= {"owner": "a", "pid": os.getpid()}.items()
    assert (folder / LEASE).exists() == is_kept
    assert not is_kept or read_lease(folder)["renewed"] == 0
    with Lease(folder, "b", is_kept=is_kept):
        assert read_lease(folder)["owner"] == "b"


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_second_writer_is_refused_by_name_whatever_its_clock_says(
    folder, monkeypatch, capsys, hours
):
    right, here = time.time, threading.current_thread()
    with locked_folder(folder):
        monkeypatch.setattr(
            time, "time", lambda: right() + 3600 * hours * (threading.current_thread() is here)
        )
        second = locked_folder(folder)
        with pytest.raises(InputError, match=f"in use by process {os.getpid()} on .*, which has"):
            second.__enter__()
    assert "; waiting for up to 3 s" in capsys.readouterr().err
    assert not (folder / LEASE).exists()


@pytest.mark.parametrize("age", [-3600, 0, 3600])
def test_the_lease_of_a_lost_machine_ends(folder, monkeypatch, capsys, age):
    monkeypatch.setattr(store_lease, "LEASE_SECONDS", 0.2)
    write_lease(folder, renewed=time.time() - age)
    with locked_folder(folder):
        assert read_lease(folder)["owner"] != OTHER["owner"]
    assert "was in use by process 7 on other; waiting" in capsys.readouterr().err


def test_of_two_that_start_at_once_one_is_refused(folder, monkeypatch):
    monkeypatch.setattr(store_lease, "START_SECONDS", 0.5)
    together, both_know, outcomes = threading.Barrier(2), threading.Barrier(2), []

    def start():
        together.wait(30)
        try:
            with locked_folder(folder):
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


def test_of_two_that_were_let_in_at_once_the_first_stops(folder, monkeypatch, capsys):
    """The lease of the second is not given back, or a third would be let in."""
    stopped = threading.Event()
    monkeypatch.setattr(os, "kill", lambda *_: stopped.set())

    def work_until_stopped():
        with Lease(folder, "a", is_kept=True):
            write_lease(folder)
            assert stopped.wait(30)

    with pytest.raises(JobFailedError, match="was taken over by process 7 on other"):
        work_until_stopped()
    assert "Error: memory://lease-tests was taken over by process 7" in capsys.readouterr().err
    assert read_lease(folder) == OTHER


def test_an_owner_may_be_several_processes(folder):
    with Lease(folder, "job", is_kept=False) as first, Lease(folder, "job", is_kept=True):
        first.confirm()


def test_the_first_of_several_to_end_does_not_let_another_owner_in(folder):
    first, second = (Lease(folder, "job", is_kept=False) for _ in range(2))
    with second:
        with first:
            second._write()  # its renewal
        with pytest.raises(InputError, match="is in use by process"):
            Lease(folder, "other", is_kept=False).__enter__()
    assert not (folder / LEASE).exists()


def test_a_store_that_fails_for_a_while_ends_no_lease(monkeypatch, capsys):
    folder = failing_folder("lease-tests")
    monkeypatch.setattr(store_lease, "LEASE_SECONDS", 0.03)
    monkeypatch.setattr(store, "PAUSES", ())
    with Lease(folder, "a", is_kept=False):
        folder.fs.open_failures[LEASE] = [PermissionError("403")] * 3
        until = time.monotonic() + 30
        while folder.fs.open_failures[LEASE] and time.monotonic() < until:
            time.sleep(0.01)
    assert "warning: the lease of failing:///lease-tests: StoreError" in capsys.readouterr().err
    assert not (folder / LEASE).exists()


def test_a_data_set_in_a_store_has_one_writer(folder, tmp_path, monkeypatch):
    """A job that was killed is followed by the next one; one that goes on keeps others out."""
    write_lease(folder / "data")
    with monkeypatch.context() as soon:
        soon.setattr(store_lease, "LEASE_SECONDS", 0.2)
        shards(tmp_path, out=folder / "data")
    there = folder.fs.find(folder.path)
    assert not any(name.endswith(LEASE) for name in there)
    with locked_folder(folder / "new"):
        with pytest.raises(InputError, match="new is in use by process"):
            shards(tmp_path, out=folder / "new")
        assert folder.fs.find(f"{folder.path}/new") == [f"{folder.path}/new/{LEASE}"]
