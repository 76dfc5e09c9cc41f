"""Folders in a store: everything the pipeline writes and reads there, by URL.

The store is fsspec's `memory://`, which lives in one process: the jobs here run in this one.
"""

import bz2
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from clozeline.pipeline.common import folder_lock
from clozeline.pipeline.common.errors import InputError, JobFailedError, StoreError
from clozeline.pipeline.common.paths import _check_url, is_local, names_in, path_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.job.job import build_shards
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.job.progress import log_file
from clozeline.pipeline.report.inspect import inspect_dataset
from clozeline.pipeline.sources.block import BLOCK_BYTES
from clozeline.pipeline.sources.files import find_files
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer
from clozeline.pipeline.verify.verify import verify
from clozeline.train.data.loader import Loader
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, TEXT
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import articles, without_sources


@dataclass
class Traffic:
    """What was fetched, by the path of the file."""

    num_bytes: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.num_bytes.clear()
        self.requests.clear()


class RangedFile(AbstractBufferedFile):
    """A file that is read through fsspec's caches, as S3's are."""

    DEFAULT_BLOCK_SIZE = 50 * 2**20  # read ahead, by s3fs

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


@contextmanager
def counted_store() -> Iterator[Traffic]:
    """In the block, files of memory:// are fetched in requests, which are counted."""
    traffic = Traffic()
    whole_cat, whole_open = MemoryFileSystem.cat_file, MemoryFileSystem._open

    def cat_file(
        self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        data: bytes = whole_cat(self, path, start, end)
        traffic.num_bytes[self._strip_protocol(path)] += len(data)
        traffic.requests[self._strip_protocol(path)] += 1
        return data

    def open_ranged(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            return whole_open(self, path, mode, **options)
        self.info(path)  # raises FileNotFoundError
        return RangedFile(self, path, mode, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", cat_file)
        patch.setattr(MemoryFileSystem, "_open", open_ranged)
        yield traffic


@pytest.fixture
def store():
    """A folder that begins empty and is gone afterwards."""
    folder = path_of("memory://clozeline-tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_lock, "START_SECONDS", 0.0)
        folder.mkdir(exist_ok=True)
        yield folder
    folder.rmdir(recursive=True)


def digests(folder):
    """Of every file that is not about the job; a file in a store counts as another source."""
    files = names_in(folder) - {"tokenizer", "job.json", "job.log", MANIFEST}
    contents = {name: (folder / name).read_bytes() for name in files}
    contents[MANIFEST] = without_sources(folder / MANIFEST)
    return {name: sha256(content).hexdigest() for name, content in contents.items()}


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_store_holds_the_bytes_of_a_disk_is_read_alike_and_overwritten(format, tmp_path, store):
    for folder in (tmp_path, store):  # each with its own copy of the text
        shards(folder, replace(CONFIG, format=format))
    local, remote = tmp_path / "out", store / "out"
    assert digests(remote) == digests(local)
    assert names_in(remote) == names_in(local)
    assert load_tokenizer(remote / "tokenizer").digest == load_tokenizer(local / "tokenizer").digest
    jobs = [json.loads((folder / "job.json").read_bytes()) for folder in (remote, local)]
    assert jobs[0].keys() == jobs[1].keys()
    assert verify(remote) == []
    shown = list(inspect_dataset(remote, number=3, seed=0, width=80))
    assert shown == list(inspect_dataset(local, number=3, seed=0, width=80))
    loaders = [Loader(folder, batch_size=7, seed=0) for folder in (remote, local)]
    for ours, theirs in islice(zip(*loaders, strict=False), 15):
        assert ours.digest == theirs.digest
    two = replace(CONFIG, num_shards=2, validation=0.0)
    shards(store, two, replace(OPTIONS, overwrite=True))
    found = {name for name in names_in(remote) if name.endswith((".arrow", ".tar"))}
    assert found == {entry.name for entry in read_manifest(remote).shards}
    assert len(found) == 2


@pytest.mark.parametrize("place", ["disk", "store"])
def test_a_failed_job_is_one_line_and_goes_on_from_where_it_stopped(place, tmp_path, store):
    folder, source = {"disk": tmp_path, "store": store}[place], "bad.jsonl"
    lines = [json.dumps({"text": text}) for text in TEXT.split("\n\n")]
    (folder / source).write_text("\n".join([*lines, "{no json"]))

    def built():
        return {path.name: path.stat().st_mtime for path in (folder / "out").glob("*.arrow")}

    with pytest.raises(JobFailedError, match=r"^1 of 61 .*, more than the 0 .* or allow more\.$"):
        shards(folder, replace(CONFIG, max_rejected=0.0), source=source)
    assert "Traceback" in (folder / "out" / "job.log").read_text()
    assert MANIFEST not in names_in(folder / "out")
    before = built()
    assert len(before) == 4

    tolerant = replace(CONFIG, max_rejected=0.1)
    assert shards(folder, tolerant, source=source)[0].counts["rejected"] == 1
    assert built() == before
    assert ".cache" not in names_in(folder / "out")
    assert shards(folder, tolerant, source=source)[1] is False


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
def test_a_url_that_no_store_can_have_is_said_at_once(url, message):
    with pytest.raises(InputError, match=f"^{message}" if url in message else message):
        path_of(url)


def test_other_urls_are_paths():
    for url in ("memory://a/b c", "file:///a//b", "hdfs:///a", "memory:///a", "memory://a/"):
        _check_url(url)
    assert path_of("memory://a/b c").name == "b c"
    for url in ("memory://a/b", "file:///a/b"):  # a store's path stays one
        assert not is_local(path_of(path_of(url)))


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


# What a job fetches from a store: what it needs, once, in a number of requests that stays linear
ROWS, GROUPS = 1600, 4
READ_CONFIG = DataConfig(max_seq_length=64, validation=0.1, min_characters=1)


@pytest.fixture
def parquet():
    """A Parquet file of two columns, of which the larger one is not text."""
    folder = path_of("memory://traffic")
    texts = articles(ROWS)
    columns = {"text": texts, "other": [text[::-1] * 2 for text in texts]}
    with (folder / "text.parquet").open("wb") as file:
        pq.write_table(
            pa.table(columns),
            file,
            row_group_size=ROWS // GROUPS,
            compression="none",
            write_statistics=False,  # which would have a whole text for each row group
        )
    small_tokenizer(PUNKT).save(folder / "tokenizer")
    yield folder
    folder.rmdir(recursive=True)


def build(folder, *, shards):
    """The traffic of a job of a block for each row group."""
    with counted_store() as traffic:
        build_shards(
            ["memory://traffic/text.parquet"],
            tokenizer=folder / "tokenizer",
            out=folder / f"out-{shards}",
            config=replace(READ_CONFIG, num_shards=shards),
            options=JobOptions(workers=1, block_bytes=300_000, token_cache=folder / "cache"),
        )
    return traffic


def contents(folder, ending):
    """The bytes of the files with this ending, by path."""
    files = folder.fs.store
    return {name: files[name].getvalue() for name in files if name.endswith(ending)}


@pytest.mark.parametrize("shards", [2, 32])
def test_the_text_of_a_source_and_the_token_cache_are_fetched_about_once(parquet, shards):
    traffic = build(parquet, shards=shards)
    files = contents(parquet, ".tokens")
    size = sum(map(len, files.values()))
    fetched = sum(traffic.num_bytes[name] for name in files)
    assert size > 500_000
    assert fetched <= 1.2 * size

    ((name, data),) = contents(parquet, "text.parquet").items()
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    needed = sum(group.column(0).total_compressed_size for group in groups)
    assert needed < 0.5 * len(data)  # the other column is not fetched
    assert traffic.num_bytes[name] <= 1.2 * needed


FILES = {
    "jsonl": lambda texts: "".join(json.dumps({"text": text}) + "\n" for text in texts),
    "txt": "\n\n".join,
    "csv": lambda texts: "\n".join(["text", *texts]),
}


def noise(size):
    """Letters and digits that no archive can pack to less than a half."""
    return random.Random(0).randbytes(size // 2).hex()


@pytest.mark.parametrize(
    ("name", "blocks"), [("a.jsonl", 2), ("a.txt", 2), ("a.jsonl.gz", 1), ("a.csv", 1)]
)
def test_the_blocks_of_a_file_are_fetched_once(name, blocks, store):
    """A CSV file is one block, as a packed one, and its head is fetched twice."""
    text = noise(2 * BLOCK_BYTES)
    texts = [text[start : start + 100_000] for start in range(0, len(text), 100_000)]
    data = FILES[name.split(".")[1]](texts).encode()
    data = gzip.compress(data, 1) if name.endswith(".gz") else data
    (store / name).write_bytes(data)
    with counted_store() as traffic:
        found = list_blocks([str(store / name)])
        assert [t for b in found for chunk in read_block(b) for t in chunk.texts] == texts
    assert len(found) == blocks
    ratio = 2.2 if name.endswith(".csv") else 1.2
    assert traffic.num_bytes.total() <= ratio * len(data)


def test_a_dump_is_cut_by_its_index_and_not_fetched_for_that(store):
    stream, header = bz2.compress(noise(1 << 20).encode()), bz2.compress(b"<mediawiki>")
    data = header + 24 * stream + bz2.compress(b"</mediawiki>")
    lines = b"".join(b"%d:1:A\n" % (len(header) + i * len(stream)) for i in range(24))
    (store / "a-multistream.xml.bz2").write_bytes(data)
    (store / "a-multistream-index.txt.bz2").write_bytes(bz2.compress(lines))
    with counted_store() as traffic:
        blocks = list_blocks([str(store / "a-multistream.xml.bz2")], block_bytes=1 << 20)
    assert len(blocks) > 10
    assert traffic.num_bytes.total() <= 0.2 * len(data)


def test_requests_are_linear_in_blocks_and_shards(parquet, monkeypatch):
    """A range for each file that a shard reads, of which there are 2, and a few for each file."""
    monkeypatch.setattr("clozeline.pipeline.steps.token_cache.MAX_FILES", 2)
    few, many = (build(parquet, shards=shards).requests.total() for shards in (2, 32))
    blocks = len(contents(parquet, ".tokens")) // 2
    assert blocks >= GROUPS
    assert few <= 60 + 10 * blocks  # some of them for the lease
    assert many - few <= 30 * (2 + 2)
