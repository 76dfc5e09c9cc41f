"""Shards: equal rows give equal bytes, damage is reported, a text decides its shard."""

import hashlib
import io
import tarfile
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import TEXT_BYTES_PER_SHARD, Buckets, hash_documents
from clozeline.pipeline.dataset.schema import (
    Examples,
    concatenate_examples,
    example_schema,
    id_type,
)
from clozeline.pipeline.dataset.shards import (
    read_batches,
    read_shard,
    rows_sha256,
    shard_name,
    whole_file,
    write_shard,
)
from tests.support import small_data
from tests.support.small import make_examples, small_tokenizer

TOKENIZER = small_tokenizer()
SCHEMA = example_schema(TOKENIZER.vocab_size, TOKENIZER.digest)
ROW = st.lists(st.integers(6, TOKENIZER.vocab_size - 1), min_size=1, max_size=12)


def masked(rows):
    examples = make_examples([[TOKENIZER.cls_id, *row, TOKENIZER.sep_id] for row in rows])
    config = DataConfig(max_seq_length=16)
    return small_data.masked(examples, split="train", shard=0, config=config, of=TOKENIZER)


def write(path, examples, format="arrow", compression=None):
    return write_shard(path, examples, SCHEMA, format=format, compression=compression)


@settings(max_examples=25)
@given(st.lists(ROW, max_size=8), st.integers(1, 400))
def test_every_format_is_read_as_written(tmp_path_factory, rows, copies):
    folder = tmp_path_factory.mktemp("shards")
    examples = masked(rows * copies)
    digests = set()
    for format, compression in (("arrow", None), ("arrow", "zstd"), ("webdataset", "lz4")):
        path = folder / shard_name("train", 0, 1, format)
        facts = write(path, examples, format, compression)
        assert rows_sha256(read_shard(path)) == facts.rows_sha256
        assert facts.rows == len(examples)
        digests.add(facts.rows_sha256)
    assert len(digests) == 1


def test_equal_rows_give_equal_bytes_however_they_were_concatenated(tmp_path):
    rows = [[7, 8, 9, 10], [11, 12, 13], [14]] * 900
    whole = masked(rows)
    pieces = concatenate_examples([whole.take(np.arange(i, i + 300)) for i in range(0, 2700, 300)])
    backwards = whole.take(np.arange(2699, -1, -1)).take(np.arange(2699, -1, -1))
    for format in ("arrow", "webdataset"):
        shas = {
            write(tmp_path / f"{name}.{format}", examples, format).sha256
            for name, examples in (("a", whole), ("b", pieces), ("c", backwards))
        }
        assert len(shas) == 1


def test_every_value_changes_the_digest():
    examples = masked([[7, 8, 9, 10, 11, 12, 13]] * 3)
    digests = {rows_sha256(examples)}
    for name, column in examples.columns().items():
        values = (column.values if isinstance(column, Ragged) else column).copy()
        values[-1] += 1
        changed = Ragged(values, column.offsets) if isinstance(column, Ragged) else values
        digests.add(rows_sha256(Examples(**{**vars(examples), name: changed})))
    moved = Ragged(examples.input_ids.values, examples.input_ids.offsets - [0, 1, 0, 0])
    digests.add(rows_sha256(Examples(**{**vars(examples), "input_ids": moved})))
    assert len(digests) == 1 + len(examples.columns()) + 1


def test_the_schema_is_the_documented_one(tmp_path):
    write(tmp_path / "s.arrow", masked([[7, 8, 9]]))
    schema = pa.ipc.open_file(tmp_path / "s.arrow").schema
    assert [f"{field.name}: {field.type}" for field in schema] == [
        "input_ids: list<item: uint16 not null>",
        "masked_lm_positions: list<item: uint16 not null>",
        "masked_lm_labels: list<item: uint16 not null>",
        "length_a: uint16",
        "next_sentence_label: int8",
        "document_a: uint64",
        "document_b: uint64",
    ]
    assert not any(field.nullable for field in schema)
    assert schema.metadata == {
        b"clozeline.schema_version": b"1",
        b"clozeline.tokenizer": TOKENIZER.digest.encode(),
    }
    assert id_type(65_535) == pa.uint16()
    assert id_type(65_536) == pa.uint32()


def test_a_shard_has_batches_of_1024_rows(tmp_path):
    write(tmp_path / "s.arrow", masked([[7]] * 2500))
    assert [batch.num_rows for batch in read_batches(tmp_path / "s.arrow")] == [1024, 1024, 452]


def test_the_datasets_library_opens_a_shard(tmp_path):
    from datasets import load_dataset

    examples = masked([[7, 8, 9], [10, 11]])
    write(tmp_path / "s.arrow", examples)
    found = load_dataset(
        "arrow", data_files=str(tmp_path / "s.arrow"), cache_dir=str(tmp_path / "c"), split="train"
    )
    assert found[1]["input_ids"] == examples.input_ids.slice(1, 2).values.tolist()


# webdataset leaves its file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_plain_webdataset_reads_a_tar_with_one_handler(tmp_path):
    import webdataset

    examples = masked([[7, 8, 9], [10, 11]] * 800)
    write(tmp_path / "s.tar", examples, "webdataset")
    with tarfile.open(tmp_path / "s.tar") as archive:
        members = [(member.name, member.mtime) for member in archive]  # without the time of day
    assert members == [("000000.arrow", 0), ("000001.arrow", 0)]
    source = webdataset.WebDataset(str(tmp_path / "s.tar"), shardshuffle=False)
    tables = [pa.ipc.open_stream(io.BytesIO(sample["arrow"])).read_all() for sample in source]
    rows = [row for table in tables for row in table["input_ids"].to_pylist()]
    assert rows[:2] == [examples.input_ids.slice(i, i + 1).values.tolist() for i in range(2)]
    assert len(rows) == 1600


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
@pytest.mark.parametrize("keep", [0, 100, 20_000])
def test_a_truncated_shard_is_named(tmp_path, format, keep):
    path = tmp_path / shard_name("train", 0, 1, format)
    write(path, masked([[7, 8, 9]] * 3000), format)
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    with pytest.raises(InputError, match=path.name):
        read_shard(path)


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
@pytest.mark.parametrize(
    ("version", "shown"),
    [("9", "9"), (b"\r\x1b\n", r"\\r\\x1b\\n"), (b"\xff" * 99, "\ufffd{40}")],
    ids=["newer", "control characters", "not text"],
)
def test_another_schema_version_is_refused_by_name(tmp_path, format, version, shown):
    newer = SCHEMA.with_metadata({"clozeline.schema_version": version})
    path = tmp_path / shard_name("train", 0, 1, format)
    write_shard(path, masked([[7]]), newer, format=format, compression=None)
    with pytest.raises(InputError, match=rf"{path.name} has schema version {shown}, this code"):
        read_shard(path)


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_a_file_is_whole_or_absent(tmp_path, kind):
    folder = tmp_path if kind == "disk" else path_of("memory://whole-files")
    folder.mkdir(exist_ok=True)

    def left_by_a_failure():
        with suppress(RuntimeError), whole_file(folder / "file") as file:
            file.write(b"half")
            raise RuntimeError
        return [entry.read_bytes() for entry in folder.iterdir()]

    assert left_by_a_failure() == []
    with whole_file(folder / "file") as file:
        file.write(b"old")
    assert left_by_a_failure() == [b"old"]
    (folder / "file").unlink()


# --- Buckets: the shard of a document depends on its text alone -----------------------------------
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8)
CONFIG = st.builds(
    DataConfig, num_shards=st.integers(1, 300), validation=st.sampled_from([0.0, 0.01, 0.1, 0.5])
)
PLAN = CONFIG.map(lambda config: Buckets.plan(config, 0))


@given(TEXTS, PLAN, st.data())
def test_a_bucket_is_a_function_of_the_text_alone(texts, buckets, data):
    together = buckets.of(*hash_documents(texts))
    order = data.draw(st.permutations(range(len(texts))))
    shuffled = buckets.of(*hash_documents([texts[i] for i in order]))
    assert shuffled.tolist() == [together[i] for i in order]
    alone = [int(buckets.of(*hash_documents([text]))[0]) for text in texts]
    assert together.tolist() == alone
    assert all(0 <= bucket < len(buckets) for bucket in alone)


@given(PLAN)
def test_every_bucket_has_one_split_and_one_name(buckets):
    places = [buckets.split_of(bucket) for bucket in range(len(buckets))]
    train = [("train", i) for i in range(buckets.num_train)]
    assert places == train + [("validation", i) for i in range(buckets.num_validation)]
    assert len({buckets.shard_name(b, "arrow") for b in range(len(buckets))}) == len(buckets)


def test_golden_buckets():
    high, low = hash_documents(["Rome is a city.", "Straße nach Köln", "It slept."])
    digest = hashlib.blake2b(b"Rome is a city.", digest_size=16).hexdigest()
    assert f"{high[0]:016x}{low[0]:016x}" == digest
    buckets = Buckets(num_train=1000, num_validation=10, validation=0.5)
    assert buckets.of(high, low).tolist() == [975, 438, 1006]
    assert buckets.shard_name(0, "arrow") == "train-00000-of-01000.arrow"
    assert buckets.shard_name(1003, "webdataset") == "validation-00003-of-00010.tar"


@pytest.mark.parametrize("validation", [0.0, 0.01, 0.3])
def test_documents_are_spread_evenly_over_the_shards_of_a_split(validation):
    high, low = hash_documents([f"document {i}" for i in range(40_000)])
    buckets = Buckets.plan(DataConfig(num_shards=16, validation=validation), 0)
    counts = np.bincount(buckets.of(high, low), minlength=len(buckets))
    train, held_out = counts[: buckets.num_train], counts[buckets.num_train :]
    for part, share in ((train, 1 - validation), (held_out, validation)):
        expected = len(high) * share / max(len(part), 1)
        assert (abs(part - expected) < 5 * np.sqrt(expected)).all()


def test_the_held_out_documents_do_not_depend_on_the_number_of_shards():
    high, low = hash_documents([f"document {i}" for i in range(2000)])
    few = Buckets.plan(DataConfig(num_shards=2, validation=0.1), 0)
    more = Buckets.plan(DataConfig(num_shards=50, validation=0.1), 0)
    assert ((few.of(high, low) >= 2) == (more.of(high, low) >= 50)).all()


@pytest.mark.parametrize(
    ("text_bytes", "shards"),
    [(0, 1), (1, 1), (TEXT_BYTES_PER_SHARD, 1), (TEXT_BYTES_PER_SHARD + 1, 2), (20 * 10**9, 313)],
)
def test_one_shard_per_64_megabytes_unless_num_shards_is_set(text_bytes, shards):
    assert Buckets.plan(DataConfig(), text_bytes).num_train == shards
    assert Buckets.plan(DataConfig(num_shards=7), text_bytes).num_train == 7
