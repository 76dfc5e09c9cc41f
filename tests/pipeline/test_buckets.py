"""Buckets: the shard of a document depends on its text alone."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import TEXT_BYTES_PER_SHARD, Buckets, hash_documents

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


@pytest.mark.parametrize(
    ("num_shards", "validation", "expected"),
    [(1, 0.001, 1), (100, 0.01, 1), (101, 0.01, 2), (20, 0.5, 10), (100, 0.0, 0)],
)
def test_any_validation_fraction_has_a_shard(num_shards, validation, expected):
    config = DataConfig(num_shards=num_shards, validation=validation)
    assert Buckets.plan(config, 0).num_validation == expected
