"""What a job fetches from a store: what it needs, once, in a number of requests that stays linear.

-s shows the figures.
"""

import bz2
import gzip
import json
import random
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.job.job import JobOptions, build_shards
from clozeline.pipeline.sources.formats import BLOCK_BYTES, list_blocks, read_block
from tests.support.counting_store import counted_store
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import articles

ROWS, GROUPS = 1600, 4
CONFIG = DataConfig(max_seq_length=64, validation=0.1, min_characters=1)


@pytest.fixture
def store():
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


@pytest.fixture
def files():
    """A folder of a store."""
    folder = path_of("memory://files")
    folder.mkdir(exist_ok=True)
    yield folder
    folder.rmdir(recursive=True)


def build(folder, *, shards):
    """The traffic of a job of a block for each row group."""
    with counted_store() as traffic:
        build_shards(
            ["memory://traffic/text.parquet"],
            tokenizer=folder / "tokenizer",
            out=folder / f"out-{shards}",
            config=replace(CONFIG, num_shards=shards),
            options=JobOptions(workers=1, block_bytes=300_000, token_cache=folder / "cache"),
        )
    return traffic


def contents(folder, ending):
    """The bytes of the files with this ending, by path."""
    files = folder.fs.store
    return {name: files[name].getvalue() for name in files if name.endswith(ending)}


@pytest.mark.parametrize("shards", [2, 32])
def test_the_text_of_a_source_and_the_token_cache_are_fetched_about_once(store, shards):
    traffic = build(store, shards=shards)
    files = contents(store, ".tokens")
    size = sum(map(len, files.values()))
    fetched = sum(traffic.num_bytes[name] for name in files)
    print(f"{shards} shards: {fetched / size:.3f} bytes fetched for each of the token cache")
    assert size > 500_000
    assert fetched <= 1.2 * size

    ((name, data),) = contents(store, "text.parquet").items()
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    needed = sum(group.column(0).total_compressed_size for group in groups)
    print(f"{traffic.num_bytes[name] / needed:.3f} bytes fetched for each of the source's text")
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
    ("name", "times"), [("a.jsonl", 1), ("a.txt", 1), ("a.jsonl.gz", 1), ("a.csv", 2)]
)
def test_the_blocks_of_a_file_are_fetched_once(name, times, files):
    """A CSV file twice: first, to find where its rows end."""
    text = noise(2 * BLOCK_BYTES)
    texts = [text[start : start + 100_000] for start in range(0, len(text), 100_000)]
    data = FILES[name.split(".")[1]](texts).encode()
    data = gzip.compress(data, 1) if name.endswith(".gz") else data
    (files / name).write_bytes(data)
    with counted_store() as traffic:
        blocks = list_blocks([str(files / name)])
        assert [t for b in blocks for chunk in read_block(b) for t in chunk.texts] == texts
    ratio = traffic.num_bytes.total() / len(data)
    print(f"{name}: {len(blocks)} blocks, {ratio:.3f} bytes fetched for each")
    assert len(blocks) == (1 if name.endswith(".gz") else 2)
    assert ratio <= times + 0.2


def test_a_dump_is_cut_by_its_index_and_not_fetched_for_that(files):
    stream, header = bz2.compress(noise(1 << 20).encode()), bz2.compress(b"<mediawiki>")
    data = header + 24 * stream + bz2.compress(b"</mediawiki>")
    lines = b"".join(b"%d:1:A\n" % (len(header) + i * len(stream)) for i in range(24))
    (files / "a-multistream.xml.bz2").write_bytes(data)
    (files / "a-multistream-index.txt.bz2").write_bytes(bz2.compress(lines))
    with counted_store() as traffic:
        blocks = list_blocks([str(files / "a-multistream.xml.bz2")], block_bytes=1 << 20)
    print(f"{traffic.num_bytes.total() / len(data):.3f} bytes fetched for each of the dump")
    assert len(blocks) > 10
    assert traffic.num_bytes.total() <= 0.2 * len(data)


def test_requests_are_linear_in_blocks_and_shards(store, monkeypatch):
    """A range for each file that a shard reads, of which there are 2, and a few for each file."""
    monkeypatch.setattr("clozeline.pipeline.job.token_cache.MAX_FILES", 2)
    few, many = (build(store, shards=shards).requests.total() for shards in (2, 32))
    blocks = len(contents(store, ".tokens")) // 2
    print(f"{blocks} blocks: {few} requests for 2 shards, {many} for 32")
    assert blocks >= GROUPS
    assert few <= 60 + 10 * blocks  # some of them for the lease
    assert many - few <= 30 * (2 + 2)
