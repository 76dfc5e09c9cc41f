"""Runs in a store: the copy and the store agree, one process writes, a lost machine loses nothing.

The store is fsspec's file://, which other processes see, or memory://, which can fail at will.
"""

import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from clozeline.pipeline.common import store as store_module
from clozeline.pipeline.common.errors import InputError, JobFailedError, StoreError
from clozeline.pipeline.common.paths import path_of
from clozeline.train.store import store_copy as store_copy_module
from clozeline.train.store import store_lease
from clozeline.train.store.store_copy import StoreCopy, copy_path, store_copy
from clozeline.train.store.store_lease import LEASE, Lease
from tests.support.small_jobs import ROOT, articles, clozeline, write_parquet, write_tokenizer

TRAIN = [
    "--preset",
    "bert-tiny",
    "--batch-size",
    "4",
    "--log-every",
    "1",
    "--warmup",
    "0",
    "--learning-rate",
    "1e-3",
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """This machine's copies."""
    monkeypatch.setenv("CLOZELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(store_module, "PAUSES", (0.0,))
    return tmp_path / "cache"


@pytest.fixture
def other_machine(monkeypatch):
    """From now on, copies are elsewhere."""

    def move(folder: Path) -> None:
        monkeypatch.setenv("CLOZELINE_CACHE", str(folder))

    return move


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LEASE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def url_of(folder: Path) -> str:
    return f"file://{folder}"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


OTHER = {"owner": "b", "pid": 7, "host": "other", "renewed": 1763.2}
FILES = {"run.json": "{}", "checkpoints/step-00000001/state.json": "1", "tokenizer/vocab.txt": "a"}


FILES_AS_BYTES = {name: text.encode() for name, text in FILES.items()}


def test_what_is_written_is_in_the_store_at_the_end(tmp_path):
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
        write(folder, {".x.partial": "half", ".lock": "me"})
    assert contents(store) == FILES_AS_BYTES
    assert json.loads((store / LEASE).read_text())["renewed"] == 0


def test_another_machine_goes_on_from_the_store(tmp_path, other_machine):
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    other_machine(tmp_path / "elsewhere")
    with store_copy(url_of(store), writes=True) as folder:
        assert contents(folder) == contents(store)
        (folder / "run.json").unlink()
        write(folder, {"checkpoints/step-00000002/state.json": "2", "run.json": "new"})
    other_machine(tmp_path / "cache")  # the first machine's copy is behind now
    with store_copy(url_of(store), writes=False) as folder:
        assert contents(folder) == contents(store)
        assert (folder / "run.json").read_text() == "new"


def test_what_was_removed_is_removed_in_the_store(tmp_path):
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    with store_copy(url_of(store), writes=True) as folder:
        (folder / "checkpoints/step-00000001/state.json").unlink()
    assert contents(store).keys() == FILES.keys() - {"checkpoints/step-00000001/state.json"}


def test_a_copy_that_is_ahead_of_its_store_stays(tmp_path):
    """The command before was killed before it had uploaded all."""
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    write(copy_path(url_of(store)), {"checkpoints/step-00000002/state.json": "2"})
    with store_copy(url_of(store), writes=True) as folder:
        assert "checkpoints/step-00000002/state.json" in contents(folder)
    assert contents(store) == contents(folder)


@pytest.mark.parametrize("lost", [["run.json"], [*FILES]])
def test_a_copy_that_was_deleted_deletes_nothing_in_the_store(tmp_path, lost):
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    for name in lost:
        (copy_path(url_of(store)) / name).unlink()
    with store_copy(url_of(store), writes=True) as folder:
        assert contents(folder).keys() == FILES.keys()
    assert contents(store).keys() == FILES.keys()


@pytest.mark.parametrize("failing", ["open", "find"])  # while it downloads, and before it
def test_a_copy_that_was_not_downloaded_whole_is_not_the_newer_one(
    failing, tmp_path, other_machine, monkeypatch
):
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    other_machine(tmp_path / "elsewhere")
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, {"run.json": "new", "checkpoints/step-00000002/state.json": "2"})
    other_machine(tmp_path / "cache")

    def fail(*_, **__):
        raise ConnectionError("cut off")

    with monkeypatch.context() as patch:
        path = path_of(url_of(store))
        for kind in (type(path.fs), type(path)):
            if hasattr(kind, failing):
                patch.setattr(kind, failing, fail)
        with pytest.raises(StoreError, match=r"ConnectionError: cut off"):
            store_copy(url_of(store), writes=True).__enter__()
    there = contents(store)
    with store_copy(url_of(store), writes=True) as folder:
        assert contents(folder) == there
    assert contents(store) == there


def empty(store: Path) -> None:
    for path in store.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("remove", [shutil.rmtree, empty])
def test_a_store_that_lost_the_run_gets_it_back_from_the_only_copy(tmp_path, capsys, remove):
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    remove(store)
    with store_copy(url_of(store), writes=False) as folder:  # as of `evaluate`
        assert contents(folder) == FILES_AS_BYTES
    said = capsys.readouterr().err
    assert f"has lost 3 files ({min(FILES)}, run.json, ...) that {folder} still has" in said
    assert f"To start without them, remove {folder}." in said
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, {"checkpoints/step-00000002/state.json": "2"})
    assert contents(store) == contents(folder)
    assert contents(store).keys() == {*FILES, "checkpoints/step-00000002/state.json"}


def test_a_checkpoint_that_was_removed_from_the_store_comes_back(tmp_path, capsys):
    """The lease is still there, and is ours."""
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    shutil.rmtree(store / "checkpoints")
    with store_copy(url_of(store), writes=True):
        pass
    assert contents(store).keys() == FILES.keys()
    assert "has lost 1 file (checkpoints/step-00000001/state.json)" in capsys.readouterr().err


def test_what_only_a_copy_has_is_moved_beside_it_when_another_run_is_in_the_store(tmp_path, capsys):
    """Somebody deleted the run and put another one there, without a lease."""
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    write(folder, {"run.json": "changed, and never uploaded"})
    shutil.rmtree(store)
    write(store, {"run.json": "of another run"})
    for _ in range(2):
        with store_copy(url_of(store), writes=True) as folder:
            assert contents(folder) == {"run.json": b"of another run"}
    aside = folder.with_name("run.aside-1")
    assert contents(aside) == FILES_AS_BYTES | {"run.json": b"changed, and never uploaded"}
    assert not folder.with_name("run.aside-2").exists()
    assert f"moved to {aside}, which you may remove" in capsys.readouterr().err


@contextmanager
def taken_over(store: Path) -> Iterator[Lease]:
    """A lease that another process holds by the end."""
    with Lease(path_of(url_of(store)), "a") as lease:
        write(store, {LEASE: json.dumps(OTHER)})
        yield lease


def test_a_writer_whose_lease_was_taken_over_uploads_nothing_more(tmp_path):
    store = tmp_path / "store" / "run"
    with (
        taken_over(store) as lease,
        pytest.raises(JobFailedError, match="was taken over by process 7 on other"),
    ):
        lease.confirm()
    assert "taken over" in str(lease.lost)


def test_a_lease_that_was_taken_over_is_not_given_back(tmp_path, capsys):
    """Or its new holder would end, and this copy would be the newer one."""
    store = tmp_path / "store" / "run"
    with taken_over(store):
        pass
    assert json.loads((store / LEASE).read_text()) == OTHER
    assert "was taken over by process 7 on other" in capsys.readouterr().err


def test_completion_and_print_config_open_no_store(tmp_path, cache):
    run = url_of(tmp_path / "store" / "run")
    done = clozeline("pretrain", "shards", "--out", run, "--print-config")
    assert f'out = "{run}"' in done.stdout.splitlines()
    assert not cache.exists()
    assert not (tmp_path / "store").exists()


def test_a_checkpoint_without_its_last_file_is_not_downloaded(tmp_path):
    store = tmp_path / "store" / "run"
    write(store, FILES | {"checkpoints/step-00000002/model.safetensors": "half"})
    with store_copy(url_of(store), writes=False) as folder:
        assert contents(folder).keys() == FILES.keys()


def test_the_files_that_make_a_folder_count_go_last(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOZELINE_CACHE", str(tmp_path / "cache"))
    uploaded = []
    copy = StoreCopy(path_of(url_of(tmp_path / "store")), tmp_path / "local")
    write(copy.local, {f"checkpoints/step-00000001/{n}": n for n in ("state.json", "z", "a")})
    write(copy.local, {"summary.json": "", "run.json": "", "tokenizer/vocab.txt": ""})
    original = copy.remote.fs.put_file

    def record(source, target):
        uploaded.append(Path(target).name)
        return original(source, target)

    monkeypatch.setattr(copy.remote.fs, "put_file", record)
    copy.upload()
    assert uploaded == ["a", "z", "run.json", "vocab.txt", "state.json", "summary.json"]
    uploaded.clear()
    copy.upload()
    assert uploaded == []


def test_a_second_writer_is_refused_by_name(tmp_path, other_machine, monkeypatch, capsys):
    """On another machine once the first has renewed its lease, every two seconds here.

    The other machine's clock is an hour ahead.
    """
    monkeypatch.setattr(store_lease, "LEASE_SECONDS", 6.0)
    monkeypatch.setattr(store_lease, "STOP", 0)
    right, here = time.time, threading.current_thread()
    store = tmp_path / "store" / "run"
    with store_copy(url_of(store), writes=True):
        with pytest.raises(InputError, match="by another process of this machine"):
            store_copy(url_of(store), writes=True).__enter__()
        with store_copy(url_of(store), writes=False):
            pass  # readers are welcome
        other_machine(tmp_path / "elsewhere")
        monkeypatch.setattr(
            time, "time", lambda: right() + 3600 * (threading.current_thread() is here)
        )
        with pytest.raises(InputError, match=f"by process {os.getpid()} on .*, which has just"):
            store_copy(url_of(store), writes=True).__enter__()
    assert "; waiting for up to 6 s" in capsys.readouterr().err


@pytest.mark.parametrize("age", [-3600, 0, 3600])
def test_the_lease_of_a_lost_machine_ends(tmp_path, monkeypatch, capsys, age):
    monkeypatch.setattr(store_lease, "LEASE_SECONDS", 0.2)
    store = tmp_path / "store" / "run"
    write(store, {LEASE: json.dumps(OTHER | {"renewed": time.time() - age})})
    with store_copy(url_of(store), writes=True) as folder:
        write(folder, FILES)
    assert contents(store).keys() == FILES.keys()
    assert "was in use by process 7 on other; waiting" in capsys.readouterr().err


def test_machines_that_share_a_cache_folder_have_their_own_copies(monkeypatch):
    names = iter(["host-a", "host-b"])
    monkeypatch.setattr(platform, "node", lambda: next(names))
    assert copy_path("s3://bucket/run") != copy_path("s3://bucket/run")


def test_a_writer_waits_for_a_download_on_its_machine(tmp_path):
    """As of `clozeline report`, or of the second of two launchers on one machine."""
    url = url_of(tmp_path / "store" / "run")
    lock = copy_path(url).with_name(".run.copy.lock")
    lock.parent.mkdir(parents=True)

    def write_nothing() -> None:
        with store_copy(url, writes=True):
            pass

    with ThreadPoolExecutor() as threads:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            writer = threads.submit(write_nothing)
            with pytest.raises(TimeoutError):
                writer.result(0.1)
        writer.result(30)


def start_of_torchrun(monkeypatch, folder: Path, local_rank: int) -> None:
    """With a static rendezvous, only the folder of its logs differs from start to start."""
    monkeypatch.setattr(store_copy_module, "PATIENCE", 0)
    error_file = folder / "attempt_0" / str(local_rank) / "error.json"
    variables = {"RANK": 8 + local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": 16}
    variables |= {"MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none"}
    variables |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_ERROR_FILE": error_file}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_a_process_waits_for_the_download_of_its_own_start(tmp_path, monkeypatch):
    url = url_of(tmp_path / "store" / "run")
    write(tmp_path / "store" / "run", FILES)
    for start in ("none_a", "none_b"):
        start_of_torchrun(monkeypatch, tmp_path / start, local_rank=1)
        with pytest.raises(JobFailedError, match="was not made by the machine's first process"):
            store_copy(url, writes=False).__enter__()
        start_of_torchrun(monkeypatch, tmp_path / start, local_rank=0)
        with store_copy(url, writes=False):
            pass
        start_of_torchrun(monkeypatch, tmp_path / start, local_rank=1)
        with store_copy(url, writes=False) as folder:
            assert contents(folder).keys() == FILES.keys()


def test_a_store_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot be used in its store, .*\(NotADirectoryError"):
        store_copy(url_of(tmp_path / "store" / "run"), writes=True).__enter__()


def test_a_store_that_is_full_leaves_the_copy_and_says_where(tmp_path, monkeypatch):
    store = tmp_path / "store" / "run"

    def fill_up() -> None:
        with store_copy(url_of(store), writes=True) as folder:
            write(folder, FILES)
            write(tmp_path / "store", {"run/tokenizer": "a file where a folder must go"})

    with pytest.raises(JobFailedError, match=r"What is missing there is in .*cache/.*/run; rerun"):
        fill_up()
    (store / "tokenizer").unlink()
    assert contents(copy_path(url_of(store))).keys() == FILES.keys()
    with store_copy(url_of(store), writes=True):
        pass
    assert contents(store).keys() == FILES.keys()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store-copy")
    write_tokenizer(folder / "tokenizer", articles(20))
    write_parquet(folder / "text.parquet", articles(20))
    line = f"shards {folder}/text.parquet --tokenizer {folder}/tokenizer --out {folder}/shards"
    done = clozeline(*line.split(), "--max-seq-length", 32, "--validation", 0.2, "--workers", 1)
    assert done.returncode == 0, done.stderr
    return folder / "shards"


def test_commands_write_and_read_runs_in_a_store(shards, tmp_path):
    run = url_of(tmp_path / "store" / "run")
    done = clozeline("pretrain", shards, "--out", run, *TRAIN, "--max-steps", 2)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "store" / "run" / "summary.json").exists()
    with store_copy(run, writes=True):  # it is in use; a report only reads it
        reported = clozeline("report", run)
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout == f"{run}/report.html\n"
    assert (tmp_path / "store" / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_run_in_a_store_goes_on_elsewhere_after_a_kill(shards, tmp_path, other_machine):
    """The same losses as of an undisturbed local run."""
    store, options = tmp_path / "store" / "run", [*TRAIN, "--save-every", 4, "--resume"]
    whole = tmp_path / "whole"
    assert (
        clozeline("pretrain", shards, "--out", whole, *options, "--max-steps", 60).returncode == 0
    )
    command = ["pretrain", shards, "--out", url_of(store), *options, "--max-steps", 60]
    line = [sys.executable, "-m", "clozeline", *map(str, command)]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.DEVNULL) as training:
        while training.poll() is None and not list(store.glob("checkpoints/step-*/state.json")):
            time.sleep(0.01)
        training.send_signal(signal.SIGKILL)
    lease = json.loads((store / LEASE).read_text())
    write(store, {LEASE: json.dumps(lease | {"renewed": 0})})  # otherwise it waits for a minute
    other_machine(tmp_path / "elsewhere")
    done = clozeline(*command)
    assert done.returncode == 0, done.stderr
    assert (store / "summary.json").exists()
    logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (whole, store)]
    losses = [[json.loads(x).get("mlm_loss") for x in log] for log in logs]
    assert losses[0] == losses[1]
    assert clozeline("evaluate", url_of(store), shards).returncode == 0
