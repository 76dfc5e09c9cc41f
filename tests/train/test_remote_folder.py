"""Runs in a store: copy and store agree, one process writes, a lost machine loses nothing.

The store is fsspec's file://, which other processes see.
"""

import hashlib
import json
import platform
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from filelock import FileLock

from clozeline.pipeline.common import folder_lock, paths
from clozeline.pipeline.common.errors import InputError, JobFailedError, StoreError
from clozeline.pipeline.common.folder_lock import LEASE
from clozeline.pipeline.common.paths import path_of
from clozeline.train.artifacts.run import load_run
from clozeline.train.store import remote_folder as module
from clozeline.train.store.folder_files import local_files
from clozeline.train.store.local_folder import MODEL, OPTIMIZER, local_folder
from clozeline.train.store.remote_folder import RemoteFolder, copy_path
from tests.support import files
from tests.support.command import invoke
from tests.support.small_data import write_data_set
from tests.support.small_jobs import ROOT, clozeline, python
from tests.support.waiting import wait_until

TRAIN = ["--preset=bert-tiny", "--batch-size=4", "--log-every=1", "--warmup=0"]
TRAIN += ["--learning-rate=1e-3"]
STEP_1, STEP_2 = (f"checkpoints/step-0000000{step}" for step in (1, 2))
FILES = {"run.json": b"{}", "checkpoints/step-00000001/state.json": b"1", "tokenizer/a.txt": b"a"}
NEWER = {"run.json": b"new", f"{STEP_2}/state.json": b"2", f"{STEP_2}/model.safetensors": b"w"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """This machine's copies."""
    monkeypatch.setenv("CLOZELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(paths, "PAUSES", (0.0,))
    monkeypatch.setattr(folder_lock, "START_SECONDS", 0.0)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def other_machine(monkeypatch):
    """From now on, copies are elsewhere."""
    return lambda folder: monkeypatch.setenv("CLOZELINE_CACHE", str(folder))


@pytest.fixture
def store(tmp_path):
    """The folder of a run in a store, which this machine has written."""
    with opened(tmp_path / "store" / "run") as folder:
        write(folder, FILES)
    return tmp_path / "store" / "run"


@contextmanager
def uploads_fail(store, *, after):
    """As if the machine, its keys or the bucket were gone."""
    kind, left = type(path_of(url_of(store)).fs), iter(range(after))
    put_file = kind.put_file

    def put_or_fail(*args, **options):
        if next(left, None) is None:
            raise PermissionError("403")
        return put_file(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "put_file", put_or_fail)
        yield


def opened(store, *, writes=True, **checkpoint):
    return local_folder(url_of(store), writes=writes, **checkpoint)


def url_of(folder):
    return f"file://{folder}"


def contents(folder):
    return {name: data for name, data in files.contents(folder).items() if LEASE not in name}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def empty(folder):
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_errors_name_the_url_and_not_the_copy(store, tmp_path):
    """From Python and from a command; a URL with a slash at its end is the same."""
    url = url_of(store)
    with pytest.raises(InputError, match=f"^{url}/run.json cannot be read"):
        load_run(f"{url}/")
    done = invoke("fill", url, "The [MASK].")
    assert (done.exit_code, str(tmp_path / "cache") in done.output) == (2, False)
    assert f"Error: {url}/run.json cannot be read" in done.output


@pytest.mark.parametrize(
    ("names", "what", "is_written"),
    [
        (("manifest.json", "train-00000-of-00001.arrow"), "a data set of `clozeline shards`", True),
        (("vocab.txt", "tokenizer.json"), "a tokenizer folder", False),
        (("a.parquet", "b.parquet"), "a folder of a.parquet, b.parquet", False),
    ],
)
def test_a_folder_of_another_kind_is_refused_before_it_is_copied(names, what, is_written, tmp_path):
    store = tmp_path / "store" / "other"
    write(store, dict.fromkeys(names, b"{}"))
    with pytest.raises(InputError, match=f"other is {what}; give a run, a classifier or a mod"):
        load_run(url_of(store))
    if is_written:
        with (
            pytest.raises(InputError, match=f"other is {what}; give another folder"),
            opened(store),
        ):
            pass
    assert local_files(copy_path(url_of(store))) == {}
    assert contents(store) == dict.fromkeys(names, b"{}")


def test_what_is_written_is_in_the_store_before_the_end_and_logs_go_along(tmp_path):
    """A log that grows is no reason to upload it: that comes with the next file."""
    with opened(tmp_path / "store" / "run") as folder:
        write(folder, FILES)
        wait_until(lambda: contents(tmp_path / "store" / "run") == FILES, "upload", seconds=60)
        write(folder, {"metrics.jsonl": b"1"})
        assert contents(tmp_path / "store" / "run") == FILES
        write(folder, NEWER)
        store = tmp_path / "store" / "run"
        wait_until(lambda: "metrics.jsonl" in contents(store), "upload", seconds=60)


def test_another_machine_goes_on_from_the_store(store, tmp_path, cache, other_machine, capsys):
    """The first one's copy is behind then, also if only the weights of a step are other ones."""
    for before, weights in ((FILES, b"w"), (NEWER, b"other")):
        other_machine(tmp_path / "elsewhere")
        with opened(store) as folder:
            assert before.items() <= contents(folder).items()
            write(folder, NEWER | {f"{STEP_2}/{MODEL}": weights})
            (folder / "tokenizer/a.txt").unlink(missing_ok=True)
        other_machine(cache)
        with opened(store, writes=False) as folder:
            assert contents(folder)["run.json"] == b"new"
            assert (folder / STEP_2 / MODEL).read_bytes() == weights
            assert "tokenizer/a.txt" not in contents(folder)
        assert "tokenizer/a.txt" not in contents(store)
        is_warned = "warning" in capsys.readouterr().err
        assert is_warned == (before is FILES)  # of the file that was deleted elsewhere


@pytest.fixture
def checkpoints(store):
    """The run in the store with two checkpoints, each with both files and their sums."""
    with opened(store) as folder:
        for step in (1, 2):
            weights = {MODEL: b"w%d" % step, OPTIMIZER: b"m%d" % step}
            sums = {name: hashlib.sha256(data).hexdigest() for name, data in weights.items()}
            weights["state.json"] = json.dumps({"files": sums}).encode()
            write(folder / f"checkpoints/step-0000000{step}", weights)
    return store


@pytest.mark.parametrize(
    ("writes", "asked", "downloaded"),
    [
        (False, {}, {f"{STEP_2}/{MODEL}"}),
        (False, {"weights": ()}, set()),
        (False, {"step": 1}, {f"{STEP_1}/{MODEL}"}),
        (False, {"step": 7}, set()),
        (True, {"weights": (MODEL, OPTIMIZER)}, {f"{STEP_2}/{MODEL}", f"{STEP_2}/{OPTIMIZER}"}),
    ],
)
def test_the_weights_of_one_checkpoint_are_downloaded(
    writes, asked, downloaded, checkpoints, tmp_path, other_machine
):
    """Those that stay in the store are removed there with their checkpoint."""
    before = contents(checkpoints).keys()
    other_machine(tmp_path / "elsewhere")
    for _ in range(2):
        with opened(checkpoints, writes=writes, **asked) as folder:
            assert {x for x in contents(folder) if x.endswith(".safetensors")} == downloaded
        assert not folder.with_name("run.aside-1").exists()  # they are known the next time
    assert contents(checkpoints).keys() == before
    with opened(checkpoints) as folder:
        shutil.rmtree(folder / STEP_1)
    assert contents(checkpoints).keys() == {x for x in before if not x.startswith(STEP_1)}


def test_a_run_resumes_from_the_newest_checkpoint_that_is_intact_in_the_store(
    checkpoints, tmp_path, other_machine
):
    (checkpoints / STEP_2 / OPTIMIZER).write_bytes(b"damaged")
    other_machine(tmp_path / "elsewhere")
    with opened(checkpoints, weights=(MODEL, OPTIMIZER)) as folder:
        assert (folder / STEP_1 / OPTIMIZER).read_bytes() == b"m1"


def test_an_overwritten_run_never_has_the_checkpoints_of_the_old_one(store):
    """The store has the new run's config, and nothing to resume."""

    def overwrite():
        with opened(store) as folder:
            empty(folder)
            write(folder, {"run.json": b"of the new run", "tokenizer/a.txt": b"new"})

    with uploads_fail(store, after=1), pytest.raises(JobFailedError, match="403"):
        overwrite()
    assert "checkpoints/step-00000001/state.json" not in contents(store)


def test_a_reader_leaves_the_copy_to_a_writer_that_began_later(store, tmp_path, other_machine):
    """The writer is killed; what it did not upload stays its own, and is not moved beside."""
    with opened(store) as folder:
        write(folder, NEWER)
    elsewhere = tmp_path / "elsewhere"
    other_machine(elsewhere)
    with opened(store, writes=False) as folder:
        with opened(store) as same:  # takes the lease over, under a new name
            killed = tmp_path / "killed"
            shutil.copytree(elsewhere, killed)
            shutil.copy(store / LEASE, killed / "lease")
        write(same, {"unsent.txt": b"1"})
    shutil.rmtree(elsewhere)
    shutil.copytree(killed, elsewhere)
    shutil.copy(killed / "lease", store / LEASE)
    write(same, {"unsent.txt": b"1"})
    with opened(store, writes=False) as folder:
        assert (folder / "unsent.txt").exists()


@pytest.mark.parametrize("lost", [["run.json"], [*FILES]])
def test_a_copy_that_was_deleted_deletes_nothing_in_the_store(store, lost):
    for name in lost:
        (copy_path(url_of(store)) / name).unlink()
    with opened(store) as folder:
        assert contents(folder) == FILES
    assert contents(store) == FILES


@pytest.mark.parametrize("failing", ["open", "find", "info"])  # while it downloads, and before
def test_a_copy_that_was_not_downloaded_whole_is_not_the_newer_one(
    failing, store, tmp_path, cache, other_machine, monkeypatch
):
    other_machine(tmp_path / "elsewhere")
    with opened(store) as folder:
        write(folder, NEWER)
    other_machine(cache)

    def fail(*_, **__):
        raise ConnectionError("cut off")

    with monkeypatch.context() as patch:
        path = path_of(url_of(store))
        for kind in (type(path.fs), type(path)):
            if hasattr(kind, failing):
                patch.setattr(kind, failing, fail)
        with pytest.raises(StoreError, match=r"ConnectionError: cut off"):
            opened(store).__enter__()
    with opened(store) as folder:
        assert contents(folder) == FILES | NEWER
    assert contents(store) == FILES | NEWER


@pytest.mark.parametrize("writes", [False, True])
def test_an_interrupted_download_goes_on_with_what_is_missing(
    writes, store, tmp_path, other_machine, monkeypatch
):
    """Nothing is moved beside the copy, and no file comes twice."""
    other_machine(tmp_path / "elsewhere")
    kind, opens = type(path_of(url_of(store))), set()
    whole = kind.open

    def open_first(path, *args, **options):
        opens.update({path.name} - {LEASE})
        if len(opens) > 1:
            raise ConnectionError("cut off")
        return whole(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "open", open_first)
        with pytest.raises(StoreError, match="cut off"):
            opened(store, writes=writes).__enter__()
    first = local_files(copy_path(url_of(store)))
    assert len(first) == 1
    with opened(store, writes=writes) as folder:
        assert contents(folder) == FILES
        assert first.items() < local_files(folder).items()
    assert not folder.with_name("run.aside-1").exists()


@pytest.mark.parametrize("remove", [shutil.rmtree, empty])
def test_a_store_that_lost_the_run_gets_it_back_from_the_only_copy(store, capsys, remove):
    remove(store)
    with opened(store, writes=False) as folder:  # as of `evaluate`
        assert contents(folder) == FILES
    said = capsys.readouterr().err
    assert f"has lost files that {folder} still has ({', '.join(sorted(FILES))});" in said
    assert f"To start without them, remove {folder}." in said
    with opened(store) as folder:
        write(folder, NEWER)
    assert contents(store) == contents(folder) == FILES | NEWER


def test_what_only_a_copy_has_is_moved_beside_it_when_another_run_is_in_the_store(store, capsys):
    """Somebody deleted the run and put another one there, without a lease."""
    write(copy_path(url_of(store)), {"run.json": b"changed, and never uploaded"})
    shutil.rmtree(store)
    write(store, {"run.json": b"of another run"})
    for _ in range(2):
        with opened(store) as folder:
            assert contents(folder) == {"run.json": b"of another run"}
    aside = folder.with_name("run.aside-1")
    assert contents(aside) == FILES | {"run.json": b"changed, and never uploaded"}
    assert not folder.with_name("run.aside-2").exists()
    assert f"moved to {aside}, which you may remove" in capsys.readouterr().err


@pytest.mark.parametrize("uploads", range(6))
def test_wherever_a_machine_is_lost_the_store_has_whole_checkpoints_and_their_metrics(
    uploads, tmp_path, other_machine
):
    """The copy has everything: on the same machine, the command continues as if nothing had been.

    It is ahead of the store, as after a kill.
    """
    store = tmp_path / "store" / "run"
    write(store, {"run.json": b"{}"})

    def train():
        with opened(store) as folder:
            for step in (1, 2):
                write(folder, {"metrics.jsonl": b"line\n" * step})
                write(folder / f"checkpoints/step-{step}", {"z.safetensors": b"w"})
                write(folder / f"checkpoints/step-{step}", {"state.json": b"%d" % step})
                if step == 1:
                    first = store / "checkpoints/step-1/state.json"
                    wait_until(lambda: uploads < 3 or first.exists(), "state", seconds=60)  # noqa: B023

    what_to_do = (
        r"403.*What is missing there is in .*/run; rerun the same command on this machine, with "
        "--resume if it has that option"
    )
    with uploads_fail(store, after=uploads), pytest.raises(JobFailedError, match=what_to_do):
        train()
    other_machine(tmp_path / "elsewhere")
    with opened(store, writes=False) as folder:
        for state in folder.glob("checkpoints/*/state.json"):
            assert (store / state.relative_to(folder)).with_name("z.safetensors").exists()
            metrics = (folder / "metrics.jsonl").read_text().splitlines()
            assert len(metrics) >= int(state.read_text())
    other_machine(tmp_path / "cache")
    with opened(store) as folder:
        there = contents(folder)
        assert len(there) == 6
    assert contents(store) == there


def test_completion_opens_no_store(tmp_path, cache):
    run = url_of(tmp_path / "store" / "run")
    words = f"clozeline pretrain shards --out {run} --preset bert-m"
    asked = {"_CLOZELINE_COMPLETE": "bash_complete", "COMP_CWORD": "6", "COMP_WORDS": words}
    completed = python("-m", "clozeline", **asked)
    assert completed.split() == ["plain,bert-mini", "plain,bert-medium"]
    assert not cache.exists()
    assert not (tmp_path / "store").exists()


def test_a_checkpoint_without_its_last_file_is_not_downloaded(store, tmp_path, other_machine):
    write(store, {f"{STEP_2}/model.safetensors": b"half"})
    other_machine(tmp_path / "elsewhere")
    with opened(store, writes=False) as folder:
        assert contents(folder) == FILES
        assert not (folder / STEP_2).exists()


def test_machines_that_share_a_cache_folder_have_their_own_copies(monkeypatch):
    names = iter(["host-a", "host-b"])
    monkeypatch.setattr(platform, "node", lambda: next(names))
    assert copy_path("s3://bucket/run") != copy_path("s3://bucket/run")


def test_a_second_writer_of_a_machine_is_refused_and_a_reader_is_welcome(store):
    with opened(store) as folder:
        write(folder, NEWER)
        with pytest.raises(InputError, match="by another process of this machine"):
            opened(store).__enter__()
        with opened(store, writes=False) as read:
            assert contents(read) == FILES | NEWER


def test_a_writer_waits_for_a_download_on_its_machine(store):
    """As of `clozeline report`, or of the second of two launchers on one machine."""

    def write_nothing():
        with opened(store):
            pass

    with ThreadPoolExecutor() as threads:
        with FileLock(copy_path(url_of(store)).with_name(".run.sync.lock")):
            writer = threads.submit(write_nothing)
            with pytest.raises(TimeoutError):
                writer.result(0.1)
        writer.result(30)


@pytest.mark.parametrize("writes", [False, True])
def test_a_process_that_waited_for_a_download_goes_on_from_it(writes, store, cache, capsys):
    """Both began before either had a copy; the second moves and downloads nothing."""
    shutil.rmtree(cache)
    first, second = RemoteFolder(url_of(store)), RemoteFolder(url_of(store))
    with first.read():
        before = local_files(first.local)
        with second.written() if writes else second.read():
            assert local_files(first.local) == before
    assert contents(first.local) == FILES
    assert "moved to" not in capsys.readouterr().err


def test_under_torchrun_rank_0_alone_opens_a_folder_that_is_written(store, cache, monkeypatch):
    """The others read what they need elsewhere, each for itself; on each machine it comes once."""
    shutil.rmtree(cache)
    monkeypatch.setenv("RANK", "1")
    with opened(store) as folder:
        assert folder == copy_path(url_of(store))
        assert not contents(folder)
        write(folder, NEWER)
    assert contents(store) == FILES
    shutil.rmtree(folder)
    with opened(store, writes=False) as folder:
        assert contents(folder) == FILES


def test_a_store_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot be used in its store, .*\(NotADirectoryError"):
        opened(tmp_path / "store" / "run").__enter__()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("remote-folder"), train=(57,), validation=(9,))


def test_commands_write_and_read_runs_in_a_store(shards, tmp_path):
    run = url_of(tmp_path / "store" / "run")
    done = invoke("pretrain", shards, "--out", run, *TRAIN, "--max-steps=2")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "store" / "run" / "summary.json").exists()
    with local_folder(run, writes=True):  # it is in use; a report only reads it
        assert invoke("report", run).stdout == f"{run}/report.html\n"
    assert (tmp_path / "store" / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_run_in_a_store_goes_on_elsewhere_after_a_kill(shards, tmp_path, other_machine):
    """The same losses as of an undisturbed local run."""
    whole, store = tmp_path / "whole", tmp_path / "store" / "run"
    options = [*TRAIN, "--save-every", 4, "--resume", "--max-steps", 60]
    assert clozeline("pretrain", shards, "--out", whole, *options).returncode == 0
    command = ["pretrain", shards, "--out", url_of(store), *options]
    line = [sys.executable, "-m", "clozeline", *map(str, command)]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.DEVNULL) as training:
        states = "checkpoints/step-*/state.json"
        wait_until(lambda: list(store.glob(states)), "checkpoint", seconds=60)
        training.send_signal(signal.SIGKILL)
    lease = json.loads((store / LEASE).read_text())
    (store / LEASE).write_text(json.dumps(lease | {"renewed": 0}))  # or it waits for a minute
    other_machine(tmp_path / "elsewhere")
    done = clozeline(*command)
    assert done.returncode == 0, done.stderr
    assert (store / "summary.json").exists()
    logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (whole, store)]
    losses = [[json.loads(x).get("mlm_loss") for x in log] for log in logs]
    assert losses[0] == losses[1]
    assert len(list((tmp_path / "elsewhere").glob("*/run/checkpoints/*/optimizer.*"))) <= 5
    assert clozeline("evaluate", url_of(store), shards).returncode == 0
