"""Folders in a store: everything the pipeline writes and reads there, by URL.

The store is fsspec's `memory://`, which lives in one process: the jobs here run in this one.
"""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clozeline.pipeline.common import store_lease
from clozeline.pipeline.common.errors import InputError, JobFailedError, StoreError
from clozeline.pipeline.common.paths import _check_url, names_in, path_of, whole_file
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.job.job import plan_shards
from clozeline.pipeline.job.job_log import log_file
from clozeline.pipeline.report.inspect import inspect_dataset
from clozeline.pipeline.sources.files import find_files
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer
from clozeline.pipeline.verify.verify import verify
from clozeline.train.data.loader import Loader
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, TEXT
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import without_sources


@pytest.fixture
def store():
    """A folder that begins empty and is gone afterwards."""
    folder = path_of("memory://clozeline-tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_lease, "START_SECONDS", 0.0)
        yield folder
    folder.rmdir(recursive=True)


def local_and_remote(tmp_path: Path, store: Path, config: DataConfig) -> tuple[Path, Path]:
    """The same data set, made on the disk and in the store from its own copy of the text."""
    for folder in (tmp_path, store):
        shards(folder, config)
    return tmp_path / "out", store / "out"


def digests(folder: Path) -> dict[str, str]:
    """Of every file that is not about the job; a file in a store counts as another source."""
    files = names_in(folder) - {"tokenizer", "job.json", "job.log", MANIFEST}
    contents = {name: (folder / name).read_bytes() for name in files}
    contents[MANIFEST] = without_sources(folder / MANIFEST)
    return {name: sha256(content).hexdigest() for name, content in contents.items()}


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_store_holds_the_same_bytes_as_a_disk(format: str, tmp_path: Path, store: Path) -> None:
    local, remote = local_and_remote(tmp_path, store, replace(CONFIG, format=format))
    assert digests(remote) == digests(local)
    assert names_in(remote) == names_in(local)
    assert load_tokenizer(remote / "tokenizer").digest == load_tokenizer(local / "tokenizer").digest
    jobs = [json.loads((folder / "job.json").read_bytes()) for folder in (remote, local)]
    assert jobs[0]["stages"].keys() == jobs[1]["stages"].keys()


def test_what_reads_a_folder_reads_a_store(tmp_path: Path, store: Path) -> None:
    local, remote = local_and_remote(tmp_path, store, CONFIG)
    assert list(verify(remote)) == []
    shown = list(inspect_dataset(remote, number=3, seed=0, width=80))
    assert shown == list(inspect_dataset(local, number=3, seed=0, width=80))
    loaders = [Loader(folder, batch_size=7, seed=0) for folder in (remote, local)]
    for ours, theirs in zip(*loaders, strict=False):
        assert ours.digest == theirs.digest
        if ours.next_position > 100:
            break


def test_a_job_in_a_store_goes_on_from_where_it_stopped(store: Path) -> None:
    (store / "bad.jsonl").write_text(
        "\n".join([*(json.dumps({"text": text}) for text in TEXT.split("\n\n")), "{no json"])
    )
    source = "bad.jsonl"
    with pytest.raises(JobFailedError, match="1 of 61 documents were rejected"):
        shards(store, replace(CONFIG, max_rejected=0.0), source=source)
    assert "Traceback" in (store / "out" / "job.log").read_text()
    assert MANIFEST not in names_in(store / "out")
    before = {path.name: path.stat().st_mtime for path in (store / "out").glob("*.arrow")}
    assert len(before) == 4

    tolerant = replace(CONFIG, max_rejected=0.1)
    shards(store, tolerant, source=source)
    after = {path.name: path.stat().st_mtime for path in (store / "out").glob("*.arrow")}
    assert after == before
    assert ".cache" not in names_in(store / "out")
    assert shards(store, tolerant, source=source)[1] is False


def test_overwriting_in_a_store_leaves_nothing_of_the_old(store: Path) -> None:
    shards(store)
    two = replace(CONFIG, num_shards=2, validation=0.0)
    shards(store, two, replace(OPTIONS, overwrite=True))
    found = {name for name in names_in(store / "out") if name.endswith(".arrow")}
    assert found == {entry.name for entry in read_manifest(store / "out").shards}
    assert len(found) == 2


def test_a_dry_run_writes_nothing(store: Path) -> None:
    (store / "corpus.txt").write_text(TEXT)
    small_tokenizer(PUNKT).save(store / "tokenizer")
    before = names_in(store)
    how = {"tokenizer": store / "tokenizer", "out": store / "out", "config": CONFIG}
    lines = list(plan_shards([str(store / "corpus.txt")], options=OPTIONS, **how))
    assert [line.split()[0] for line in lines] == ["blocks", "shards", "examples", "disk", "time"]
    assert names_in(store) == before


def test_a_file_in_a_store_is_whole_or_absent(store: Path) -> None:
    def fail_half_way() -> None:
        with whole_file(store / "file") as file:
            file.write(b"half")
            raise RuntimeError

    store.mkdir()
    with pytest.raises(RuntimeError):
        fail_half_way()
    assert names_in(store) == set()
    with whole_file(store / "file") as file:
        file.write(b"whole")
    with pytest.raises(RuntimeError):
        fail_half_way()
    assert (store / "file").read_bytes() == b"whole"
    assert names_in(store) == {"file"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://a/b", "nowhere://a/b cannot be reached: .*nowhere"),
        ("s3://", "'s3://' names nothing in a store; write it as s3://BUCKET/PATH"),
        ("s3:///x", "names nothing in a store"),
        ("s3://B//dbl", "names nothing in a store"),
        ("gs://B/a//b/", "names nothing in a store"),
        ("s3://B ucket/x", "names nothing in a store"),
        (" s3://B/x", "names nothing in a store; write it as s3://BUCKET"),
        ("memory://", "names nothing in a store"),
        ("file:///", "names nothing in a store"),
    ],
)
def test_a_url_that_no_store_can_have_is_said_at_once(url: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}" if url in message else message):
        path_of(url)


def test_other_urls_are_paths() -> None:
    for url in ("memory://a/b c", "file:///a//b", "hdfs:///a", "memory:///a", "memory://a/"):
        _check_url(url)
    assert path_of("memory://a/b c").name == "b c"


class RefusedError(Exception):
    """As the library of a store has its own."""


def refuse(*_, **__):
    raise RefusedError("no entry")


def test_a_store_that_refuses_is_named_in_one_line(store, tmp_path, monkeypatch):
    (store / "out").mkdir()
    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    message = rf"^{store}/out cannot be used in its store \(RefusedError: no entry\); check the "
    with pytest.raises(StoreError, match=message):
        shards(tmp_path, out=store / "out")
    with pytest.raises(StoreError, match=message):
        make_tokenizer("sample:articles?size=20KB", out=store / "out", vocab_size=100)


def test_a_glob_has_every_file_also_where_a_request_for_one_fails(store, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (store / name).write_text("text")
    monkeypatch.setattr(MemoryFileSystem, "isfile", lambda *_: False)  # as fsspec answers then
    found = [file.path.rpartition("/")[2] for file in find_files(f"{store}/*.txt")]
    assert found == ["a.txt", "b.txt"]


def test_a_log_that_cannot_be_written_does_not_hide_why_the_job_failed(store, monkeypatch):
    (store / "out").mkdir()
    monkeypatch.setattr(MemoryFileSystem, "_open", refuse)

    def fail():
        with log_file(store / "out") as log:
            log.write_text("what happened")
            raise JobFailedError("why")

    with pytest.raises(JobFailedError, match="why"):
        fail()
