"""The manifest and its config: read as written; damaged or impossible ones are refused."""

import json
import math
from contextlib import suppress
from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import sealed
from clozeline.pipeline.config import CURATION, DataConfig, PairScheme
from clozeline.pipeline.dataset.manifest import (
    MANIFEST,
    Manifest,
    ShardEntry,
    read_manifest,
    write_manifest,
)
from clozeline.pipeline.dataset.schema import schema_version

HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
SHARDS = st.lists(
    st.builds(
        ShardEntry,
        name=st.from_regex(r"train-[0-9]{5}-of-[0-9]{5}\.arrow", fullmatch=True),
        split=st.sampled_from(["train", "validation"]),
        rows=st.integers(0, 10**7),
        bytes=st.integers(0, 10**12),
        sha256=HEX,
        rows_sha256=HEX,
        length_histogram=st.lists(st.integers(0, 10**6), max_size=8),
    ),
    max_size=4,
)
CONFIGS = st.builds(
    DataConfig,
    num_shards=st.none() | st.integers(1, 100_000),
    validation=st.floats(0, 0.5),
    pairs=st.sampled_from(get_args(PairScheme)),
    max_seq_length=st.integers(8, 65_535),
    masked_lm_prob=st.floats(0.01, 1.0),
    max_predictions_per_seq=st.none() | st.integers(1, 65_535),
    masking=st.sampled_from(["tokens", "whole-words"]),
    mask_token_prob=st.floats(0, 0.5),
    random_token_prob=st.floats(0, 0.5),
    text_columns=st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
    similarity=st.floats(0.3, 1.0),
    deduplicate=st.just("near"),
    seed=st.integers(0, 2**63 - 1),
)
COUNTS = st.dictionaries(st.text(max_size=8), st.integers(0, 10**12), max_size=3)


def entry(index, split="train", rows=10, rows_sha256="b"):
    return ShardEntry(
        name=f"{split}-{index:05d}-of-00002.arrow",
        split=split,
        rows=rows,
        bytes=1000,
        sha256="a" * 64,
        checksum=5,
        rows_sha256=rows_sha256 * 64,
        length_histogram=[1, 9],
    )


SMALL = Manifest(
    config=DataConfig(num_shards=2),
    tokenizer_digest="f" * 64,
    vocab_size=5,
    shards=[entry(0), entry(1, rows=7), entry(0, "validation", rows=3)],
    counts={"documents": 4, "rejected": 0},
    dropped={"empty": 1},
    token_counts=[0, 0, 6, 2, 0],
)


@settings(max_examples=40)
@given(SHARDS, COUNTS, COUNTS, CONFIGS)
def test_a_manifest_is_read_as_written(tmp_path, shards, counts, dropped, config):
    facts = {"counts": counts, "dropped": dropped, "config": config}
    version = schema_version(packed=config.is_packed)
    manifest = replace(SMALL, shards=shards, schema_version=version, **facts)
    write_manifest(tmp_path, manifest)
    found = read_manifest(tmp_path)
    assert found == manifest
    assert found.dataset_digest == manifest.dataset_digest


def test_the_file_has_one_field_per_line_and_is_reproducible(tmp_path):
    write_manifest(tmp_path, SMALL)
    text = (tmp_path / MANIFEST).read_text()
    names = [line.split(":")[0].strip('"') for line in text.splitlines() if line.startswith('"')]
    assert " ".join(names) == (
        "config counts dataset_digest dropped schema_version sha256 sources_digest token_counts "
        "tokenizer_digest vocab_size shards"
    )
    assert sum(line.startswith('{"name"') for line in text.splitlines()) == 3
    write_manifest(tmp_path, replace(SMALL))
    assert (tmp_path / MANIFEST).read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        {"shards": [entry(0, rows=11), *SMALL.shards[1:]]},
        {"shards": [entry(0, rows_sha256="c"), *SMALL.shards[1:]]},
        {"shards": [SMALL.shards[1], SMALL.shards[0], SMALL.shards[2]]},
        {"shards": SMALL.shards[:2]},
        {"shards": [*SMALL.shards[:2], entry(0, "train", rows=3)]},
        {"tokenizer_digest": "e" * 64},
        {"schema_version": 2},
    ],
)
def test_the_digest_changes_with_rows_and_order_and_tokenizer(change):
    assert replace(SMALL, **change).dataset_digest != SMALL.dataset_digest


def test_the_digest_does_not_depend_on_format_or_counts():
    shards = [replace(x, name=x.name + ".tar", bytes=9, sha256="9" * 64) for x in SMALL.shards]
    config = DataConfig(format="webdataset", compression="zstd")
    same = replace(SMALL, shards=shards, config=config, counts={}, dropped={}, token_counts=[])
    assert same.dataset_digest == SMALL.dataset_digest
    golden = "86d2c863edc21bd5a96756f356a4146f525d1c12aeea590a56cd8989a43e9591"
    assert SMALL.dataset_digest == golden


def test_the_unigram_adds_one_to_each_count():
    probabilities = np.array([1, 1, 7, 3, 1]) / 13  # each of the counts 0, 0, 6, 2, 0 plus one
    np.testing.assert_allclose(SMALL.log_unigram, np.log(probabilities))
    assert SMALL.unigram_loss == pytest.approx(0.75 * math.log(13 / 7) + 0.25 * math.log(13 / 3))
    assert replace(SMALL, token_counts=[0] * 5).unigram_loss == 0


def test_a_folder_that_is_not_a_data_set_is_refused(tmp_path):
    for name, message in {
        "train-00000-of-00002.arrow": r"has no manifest\.json.*again to continue",
        "train-00000-of-100000.arrow": "its shards are not finished",
        "run.json": "is a run of `clozeline pretrain`; give a data set",
    }.items():
        (tmp_path / name).touch()
        with pytest.raises(InputError, match=rf"{tmp_path} .*{message}"):
            read_manifest(tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda facts: facts["shards"][0].update(rows=9), "its dataset_digest does not match"),
        (lambda facts: facts.pop("dataset_digest"), "dataset_digest"),
        (lambda facts: facts.update(schema_version=2), "schema version 2, this code reads 1"),
        (lambda facts: facts["config"].update(pairs="all"), "pairs is 'all'"),
        (lambda facts: facts["config"].pop("masking"), "another version .*: missing mask"),
        (lambda facts: facts["config"].update(whole_word=True), "Clozeline: unknown whole_word"),
        (lambda facts: facts.pop("counts"), "written by another version of Clozeline: missing co"),
        (lambda facts: facts["shards"][0].pop("sha256"), "sha256"),
        (lambda facts: facts.update(shards=None), "not iterable"),
    ],
)
def test_a_manifest_that_was_changed_is_refused_with_its_path(tmp_path, spoil, message):
    write_manifest(tmp_path, SMALL)
    facts = json.loads((tmp_path / MANIFEST).read_text())
    spoil(facts)
    (tmp_path / MANIFEST).write_text(json.dumps(sealed(facts)))
    with pytest.raises(InputError, match=rf"{tmp_path}/manifest\.json cannot be read .*{message}"):
        read_manifest(tmp_path)


def test_no_wrong_byte_gives_another_manifest(tmp_path):
    write_manifest(tmp_path, SMALL)
    whole = (tmp_path / MANIFEST).read_bytes()
    for i in range(0, len(whole), 3):
        changed = whole[:i] + bytes([whole[i] ^ (1 + i % 7)]) + whole[i + 1 :]
        (tmp_path / MANIFEST).write_bytes(changed)
        with suppress(InputError):
            assert read_manifest(tmp_path) == SMALL, changed[max(i - 20, 0) : i + 20]


# --- The data config: impossible values are refused, and it survives the manifest -----------------
def test_every_field_reaches_the_manifest_but_those_of_curation_only_where_they_are_given():
    names = [field.name for field in fields(DataConfig)]
    assert list(DataConfig().to_dict()) == [name for name in names if name not in CURATION]
    stored = DataConfig(deduplicate="near", similarity=0.7).to_dict()
    assert (stored["deduplicate"], stored["similarity"]) == ("near", 0.7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_seq_length": 7}, "max_seq_length is 7; it must be 8 to 65535."),
        ({"num_shards": 0}, "num_shards is 0"),
        ({"validation": 0.6}, "validation is 0.6; it must be 0.0 to 0.5."),
        ({"masked_lm_prob": 0}, "masked_lm_prob is 0"),
        ({"masking": "spans"}, "masking is 'spans'; it must be one of tokens, whole-words."),
        ({"mask_token_prob": math.nan}, "mask_token_prob is nan"),
        ({"mask_token_prob": 0.8, "random_token_prob": 0.3},
         "mask_token_prob 0.8 and random_token_prob 0.3 sum to more than 1; lower one of them."),
        ({"dupe_factor": 0}, "dupe_factor is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"pairs": "all"},
         "pairs is 'all'; it must be one of segments, order, sentences, none, packed."),
        ({"compression": "gzip"}, "compression is 'gzip'; it must be one of none, lz4, zstd."),
        ({"text_columns": ()}, "text_columns is empty; name the column that holds the text."),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_with_what_is_possible(values, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        DataConfig(**values)


@pytest.mark.parametrize(
    ("length", "prob", "given", "predictions"),
    [(128, 0.15, None, 20), (512, 0.15, None, 77), (128, 0.15, 5, 5), (8, 1.0, None, 8)],
)
def test_max_predictions_default_to_length_times_probability(length, prob, given, predictions):
    config = DataConfig(max_seq_length=length, masked_lm_prob=prob, max_predictions_per_seq=given)
    assert config.predictions == predictions
