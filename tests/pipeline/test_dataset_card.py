"""The card: `datasets` opens the folder by its head, its own code runs, and an edited one stays."""

import itertools
import json
import re
import shutil
from dataclasses import replace

import pytest
import yaml

from clozeline.pipeline.dataset.manifest import (
    CARD,
    Manifest,
    ShardEntry,
    read_manifest,
)
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.dataset_card import card_text, source_name, write_card
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_jobs import python

# The folders PREPARED/0, PREPARED/1, ... stand at PLACE one after the other, as if one was rebuilt;
# of each, the card's own code runs, and all that it read is printed.
FOLLOW = """
import json, re, sys
from pathlib import Path
prepared, place = map(Path, sys.argv[1:])
for folder in sorted(prepared.iterdir()):
    folder.rename(place)
    code = re.search(r"```python\\n(.*?)```", (place / "README.md").read_text(), re.DOTALL)[1]
    found = {}
    exec(code.replace("PATH_OR_NAME", str(place)), found)
    columns = {split: rows.to_dict() for split, rows in found["data"].items()}
    rows = found["rows"].to_pydict() if "rows" in found else None
    print(json.dumps([columns, rows], default=str), flush=True)
    place.rename(folder)
"""
SHAPES = [
    {"train": (13, 0, 7), "validation": (9,)},
    {"train": (13, 0, 7), "validation": (9,), "config": replace(SMALL, seed=1)},  # built again
    {"train": (0, 5)},
    {"train": (5,), "validation": (0,)},
    {"train": (13, 0, 7), "validation": (9,), "config": replace(SMALL, format="webdataset")},
]


@pytest.fixture
def data_set(small_folder, tmp_path):
    """A copy to write into: 57 + 23 rows, one shard without any."""
    return shutil.copytree(small_folder, tmp_path / "data")


def head(manifest):
    """The YAML at the top of the card."""
    text = card_text(manifest, {})
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])


def columns_of(folder, split):
    """All rows of a split, as our own reader gives them."""
    columns: dict[str, list] = {name: [] for name in example_schema(100, "").names}
    for entry in read_manifest(folder).of_split(split):
        examples = read_shard(folder / entry.name)
        for name, values in columns.items():
            column = getattr(examples, name)
            if name in ("input_ids", "masked_lm_positions", "masked_lm_labels"):
                bounds = column.offsets
                values += [column.values[a:b].tolist() for a, b in itertools.pairwise(bounds)]
            else:
                values += column.tolist()
    return columns


def test_the_code_of_a_card_gives_the_rows_of_each_split_that_has_any(tmp_path):
    """Also of a folder that was built again: `datasets` keeps what it read by the card's head."""
    folders = [tmp_path / "prepared" / str(number) for number in range(len(SHAPES))]
    for folder, shape in zip(folders, SHAPES, strict=True):
        write_card(write_data_set(folder, **shape))
    cache = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "TQDM_DISABLE": "1"}
    said = python("-c", FOLLOW, tmp_path / "prepared", tmp_path / "data", **cache)
    read = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    splits = ("train", "validation")
    *wanted, last = [{split: columns_of(folder, split) for split in splits} for folder in folders]
    *tables, (members, rows) = read
    for (columns, _), expected in zip(tables, wanted, strict=True):
        assert columns == {split: rows for split, rows in expected.items() if rows["input_ids"]}
    assert wanted[0]["train"] != wanted[1]["train"]
    assert members.keys() == {*splits}
    assert rows == last["train"]


def test_the_head_has_what_the_hub_requires(small_folder):
    facts = head(read_manifest(small_folder))
    assert facts["license"] == "unknown"
    assert facts["task_categories"] == ["fill-mask"]
    [config] = facts["configs"]
    assert config["config_name"] == "default"
    assert config["data_files"] == [
        {"split": "train", "path": "train-*.arrow"},
        {"split": "validation", "path": "validation-*.arrow"},
    ]


def manifest_of(rows):
    digests = {"sha256": "", "rows_sha256": "", "checksum": 0}
    shard = ShardEntry(
        name="train", split="train", rows=rows, bytes=1, length_histogram=[], **digests
    )
    return Manifest(config=SMALL, tokenizer_digest="", vocab_size=100, shards=[shard])


def test_the_card_says_what_the_data_set_holds_and_how_it_was_built(data_set):
    job = {"sources": ["/home/ann/wiki/a-*.parquet", "hf://wikimedia/wikipedia?name=20231101.lg"]}
    (data_set / "job.json").write_text(json.dumps(job))
    manifest = read_manifest(data_set)
    write_card(data_set)
    card = (data_set / CARD).read_text()
    rows = re.findall(r"^\| (.*) \|$", card, re.MULTILINE)
    size = sum((data_set / shard.name).stat().st_size for shard in manifest.of_split("train"))
    assert f"train | 57 | 5 | {size:,}" in rows
    assert manifest.dataset_digest in card
    assert manifest.tokenizer_digest in card
    options = re.search(r"```json\n(.*?)```", card, re.DOTALL)[1]
    assert json.loads(options) == manifest.config.to_dict()
    assert "    a-*.parquet\n    hf://wikimedia/wikipedia?name=20231101.lg\n" in card
    assert "/home/ann" not in card


def test_every_column_and_its_type_stand_in_the_card(small_folder):
    card = card_text(read_manifest(small_folder), {})
    named = {}
    for names, kind in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([\w ]+) \|", card, re.MULTILINE):
        named |= dict.fromkeys(re.findall(r"\w+", names), kind)
    schema = example_schema(SMALL.max_seq_length, "")
    assert named == {
        field.name: re.sub(r"list<.*: (\w+).*>", r"list of \1", str(field.type)) for field in schema
    }


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/home/ann/wiki/a?-*.parquet", "a?-*.parquet"),
        ("C:\\Users\\ann\\wiki.txt", "wiki.txt"),
        ("https://ann:secret@host/data/a.jsonl?token=abc/def", "a.jsonl"),
        ("s3://bucket/ann/a.jsonl", "a.jsonl"),
        ("sample:articles?size=1MB", "sample:articles?size=1MB"),
        ("hf://wikimedia/wikipedia?name=20231101.en", "hf://wikimedia/wikipedia?name=20231101.en"),
        ("hf://imdb", "hf://imdb"),
        ("hf:///home/ann/wiki/?split=test&limit=5", "hf://wiki?split=test&limit=5"),
        ("hf:///ann", "hf://ann"),
        ("hf://../ann/wiki", "hf://wiki"),
        ("hf://ann/private/wiki", "hf://wiki"),
    ],
)
def test_the_name_of_a_source_reveals_nothing_of_its_machine(source, name):
    assert source_name(source) == name


def test_the_card_names_excluded_texts_without_their_folder():
    manifest = manifest_of(5)
    config = replace(manifest.config, exclude=("/home/ann/private/test.csv",))
    card = card_text(replace(manifest, config=config), {})
    assert '"test.csv"' in card
    assert "ann" not in card


def test_a_card_that_was_edited_is_kept_and_another_is_written_again(data_set):
    assert write_card(data_set)
    first = (data_set / CARD).read_text()
    (data_set / "job.json").write_text('{"sources": ["a.txt"]}')
    assert write_card(data_set)
    assert (data_set / CARD).read_text() != first
    for mine in (first.replace("license: unknown", "license: cc-by-sa-4.0"), "# Mine\n", ""):
        (data_set / CARD).write_text(mine)
        assert not write_card(data_set)
        assert (data_set / CARD).read_text() == mine
