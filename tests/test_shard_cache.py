"""The shard cache: one fetch a machine, a bounded folder, and nothing half-written in it."""

import errno
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from clozeline.pipeline.common.errors import CorruptDataError, InputError
from clozeline.pipeline.common.paths import path_of
from clozeline.train.data import shard_cache as module
from clozeline.train.data.loader import Loader
from clozeline.train.data.shard_cache import ShardCache
from clozeline.train.data.shard_set import ShardSet
from tests.support.counting_store import counted_store
from tests.support.small_data import write_data_set
from tests.support.training_configs import training_config

ROOT = Path(__file__).parent.parent


@pytest.fixture
def store(tmp_path):
    """A data set of three shards in a store."""
    local = write_data_set(tmp_path / "data", train=(30, 20, 25))
    folder = path_of("memory://cached")
    folder.fs.put(str(local), "/cached", recursive=True)
    yield folder
    folder.rmdir(recursive=True)


def cached(tmp_path):
    return [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]


def batches(store, cache=None, number=12):
    loader = Loader(store, batch_size=10, seed=0, prefetch=0, shard_cache=cache)
    return [loaded.digest for _, loaded in zip(range(number), loader, strict=False)]


def test_each_shard_is_fetched_once_and_reads_as_from_the_store(store, tmp_path):
    wanted = batches(store)
    cache = ShardCache(tmp_path / "cache", limit=10**9)
    with counted_store() as traffic:
        assert batches(store, cache) == wanted
        assert batches(store, ShardCache(tmp_path / "cache", limit=10**9)) == wanted
    shards = [name for name in traffic.requests if name.endswith(".arrow")]
    assert [traffic.requests[name] for name in shards] == [1, 1, 1]
    assert {path.stem for path in cached(tmp_path)} == {
        sha256(path.read_bytes()).hexdigest() for path in store.glob("train-*.arrow")
    }


def test_the_least_recently_read_goes_first(tmp_path):
    folder = path_of("memory://lru")
    for name in "abcd":
        (folder / f"{name}.arrow").write_bytes(name.encode() * 100)
    cache = ShardCache(tmp_path / "cache", limit=300)

    def fetch(name):
        digest = name * 64
        found = cache.fetch(folder / f"{name}.arrow", sha256=digest)
        assert found.read_bytes() == name.encode() * 100
        for age, path in enumerate(sorted(cached(tmp_path), key=lambda p: p.stat().st_mtime_ns)):
            os.utime(path, ns=(age, age))  # file systems' clocks may be coarse

    (tmp_path / "cache" / "thesis.tex").write_text("x" * 1000)
    (tmp_path / "cache" / "folder").mkdir()
    for name in "abca":
        fetch(name)
    fetch("d")
    assert sorted(path.name[0] for path in cached(tmp_path)) == ["a", "c", "d", "f", "t"]


def test_a_damaged_copy_is_fetched_again_and_a_damaged_shard_named(store, tmp_path):
    cache = ShardCache(tmp_path / "cache", limit=10**9)
    shards = ShardSet(store, "train", shard_cache=cache)
    rows = len(shards.read(0))
    (copy,) = cached(tmp_path)
    copy.write_bytes(copy.read_bytes()[:-9])
    assert len(shards.read(0)) == rows
    path = store / shards.entries[1].name
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    with pytest.raises(CorruptDataError, match=r"memory://cached/train-00001\S* is damaged"):
        shards.read(1)


def test_a_full_disk_is_a_warning_and_reading_continues(store, tmp_path, monkeypatch, capsys):
    cache = ShardCache(tmp_path / "cache", limit=10**9)

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "whole_file", full)
    assert batches(store, cache) == batches(store)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "cannot be written (No space left on device), so shards are fetched again each time" in line
    )


def test_a_lock_that_cannot_be_opened_is_a_warning_and_reading_continues(store, tmp_path, capsys):
    cache = ShardCache(tmp_path / "cache", limit=10**9)
    for path in store.glob("train-*.arrow"):
        lock = module.LOCK.format(sha256(path.read_bytes()).hexdigest())
        (tmp_path / "cache" / lock).mkdir()
    assert batches(store, cache) == batches(store)
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written (Is a directory), so shards are fetched again each time" in line


def test_a_shard_that_cannot_be_removed_is_a_warning_and_reading_continues(store, tmp_path, capsys):
    cache = ShardCache(tmp_path / "cache", limit=1)
    (tmp_path / "cache" / f"{'0' * 64}.arrow").mkdir()
    assert batches(store, cache) == batches(store)
    assert "so shards are fetched again each time" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot create the folder"):
        ShardCache(tmp_path / "file" / "cache", limit=1)


def test_two_processes_fetch_a_shard_once(store, tmp_path):
    """The second waits for the first, and finds the file."""
    code = """
import sys; from pathlib import Path
from clozeline.train.data.shard_cache import ShardCache
from clozeline.pipeline.common.paths import path_of
cache = ShardCache(Path(sys.argv[1]), limit=10**9)
print(cache.fetch(path_of(sys.argv[2]), sha256="ab").stat().st_ino)
"""
    source = tmp_path / "data" / "train-00000-of-00003.arrow"
    command = [sys.executable, "-c", code, str(tmp_path / "cache"), f"file://{source}"]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    inodes = []
    for process in both:
        with process:
            inodes.append(process.communicate()[0])
            assert process.returncode == 0
    assert inodes[0] == inodes[1]


def test_the_limit_is_checked_when_it_is_given():
    assert training_config(shard_cache_limit="1.5GB").shard_cache_bytes == 1_500_000_000
    with pytest.raises(InputError, match=r"shard_cache_limit is .*; give bytes"):
        training_config(shard_cache_limit="much")
