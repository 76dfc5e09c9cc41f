"""Shards on a machine: one fetch, a bounded folder, and a damaged one is refused by name."""

import errno
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from clozeline.pipeline.common.errors import CorruptDataError
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.pipeline.dataset.shards import write_shard
from clozeline.train.data import shard_set as module
from clozeline.train.data.loader import Loader
from clozeline.train.data.shard_set import ShardCache, ShardSet
from tests.support.counting_store import counted_store
from tests.support.small import make_examples
from tests.support.small_data import SMALL, write_data_set


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


def full(folder, store, patch):
    def write(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(module, "whole_file", write)


def locks_that_cannot_be_opened(folder, store, _):
    for path in store.glob("train-*.arrow"):
        (folder / module.LOCK.format(sha256(path.read_bytes()).hexdigest())).mkdir()


def a_shard_that_cannot_be_removed(folder, *_):
    (folder / f"{'0' * 64}.arrow").mkdir()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (full, r"\(No space left on device\)"),
        (locks_that_cannot_be_opened, r"\(Is a directory\)"),
        (a_shard_that_cannot_be_removed, ""),
    ],
)
def test_what_cannot_be_written_is_a_warning_and_reading_continues(
    store, tmp_path, monkeypatch, capsys, harm, reason
):
    cache = ShardCache(tmp_path / "cache", limit=1)
    harm(tmp_path / "cache", store, monkeypatch)
    assert batches(store, cache) == batches(store)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"cannot be written .*{reason}, so shards are fetched again each time", line)


def test_of_several_that_want_a_shard_one_fetches_it(store, tmp_path):
    """The others wait, and find the file; a lock of its own for each, as processes have."""
    name = read_manifest(store).shards[0].name
    ready = threading.Barrier(4)

    def fetch(_):
        cache = ShardCache(tmp_path / "cache", limit=10**9)
        ready.wait()
        return cache.fetch(store / name, sha256="ab").stat().st_ino

    with counted_store() as traffic, ThreadPoolExecutor(4) as threads:
        inodes = {*threads.map(fetch, range(4))}
    assert (len(inodes), traffic.requests[f"/cached/{name}"]) == (1, 1)


# --- The shards that training reads: what is damaged or cannot be is refused by name --------------


def read(folder, split):
    """The rows of the first shard, with nothing checked but what is checked by default."""
    return ShardSet(folder, split).read(0)


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_wrong_byte_is_noticed_and_its_shard_named(tmp_path, split, format):
    folder = write_data_set(
        tmp_path / "data", train=(30,), validation=(30,), config=replace(SMALL, format=format)
    )
    [path] = folder.glob(f"{split}-*")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in [0, len(whole) - 1, *rng.integers(0, len(whole), 40)]:
        path.write_bytes(whole[:i] + bytes([whole[i] ^ rng.integers(1, 256)]) + whole[i + 1 :])
        with pytest.raises(CorruptDataError, match=f"{path.name} is damaged"):
            read(folder, split)


def uint16(values, in_rows=2):
    """A column with as many values in each of 30 rows."""
    return Ragged(np.array(values, np.uint16), np.arange(31) * in_rows)


def masked(*first):
    """Masked positions 2 and 5 in each row but the first."""
    return {"masked_lm_positions": uint16([*first, *[2, 5] * 29])}


#: Of rows [CLS] w w [SEP] w w w [SEP] with two masks.
IMPOSSIBLE = [
    ({"length_a": np.full(30, 9, np.uint16)}, "a length_a that does not fit its row"),
    ({"length_a": np.zeros(30, np.uint16)}, "a length_a that does not fit its row"),
    ({"next_sentence_label": np.full(30, 2, np.int8)}, "that is not -1, 0 or 1"),
    ({"next_sentence_label": np.full(30, -2, np.int8)}, "that is not -1, 0 or 1"),
    (masked(5, 2), "that are not ascending"),
    (masked(5, 5), "that are not ascending"),
    (masked(2, 8), "beyond their row"),
    ({"masked_lm_labels": uint16([6] * 30, 1)}, "more or fewer labels than masked positions"),
]


@pytest.mark.parametrize(("changes", "complaint"), [({}, None), *IMPOSSIBLE])
def test_rows_that_cannot_be_are_refused_although_the_file_is_whole(tmp_path, changes, complaint):
    examples = make_examples([[1, 7, 8, 2, 9, 9, 9, 2]] * 30, length_a=[4] * 30)
    rows = replace(examples, **{**masked(2, 5), "masked_lm_labels": uint16([6] * 60), **changes})
    folder = write_data_set(tmp_path / "data", train=(30,))
    manifest, path = read_manifest(folder), folder / "train-00000-of-00001.arrow"
    schema = example_schema(manifest.vocab_size, manifest.tokenizer_digest)
    entry = write_shard(path, rows, schema, format="arrow", compression=None)
    write_manifest(folder, replace(manifest, shards=[entry]))
    if complaint is None:
        assert len(read(folder, "train")) == 30
        return
    with pytest.raises(CorruptDataError, match=rf"is damaged \(.*{complaint}"):
        read(folder, "train")
