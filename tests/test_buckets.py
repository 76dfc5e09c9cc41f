"""Buckets: the shard of a document depends on its text alone."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import TEXT_BYTES_PER_SHARD, Buckets, hash_documents

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8)
PLAN = st.builds(
    lambda shards, validation: Buckets.plan(
        DataConfig(num_shards=shards, validation=validation), 0
    ),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.01, 0.1, 0.5]),
)


def many(count=40_000):
    return hash_documents([f"document {i}" for i in range(count)])


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


def test_the_hash_is_blake2b_of_the_text_in_two_halves():
    high, low = hash_documents(["Rome is a city.", ""])
    digest = hashlib.blake2b(b"Rome is a city.", digest_size=16).hexdigest()
    assert f"{high[0]:016x}{low[0]:016x}" == digest
    assert len(hash_documents([])[0]) == 0


def test_golden_buckets():
    high, low = hash_documents(["Rome is a city.", "Straße nach Köln", "It slept."])
    buckets = Buckets(num_train=1000, num_validation=10, validation=0.5)
    assert buckets.of(high, low).tolist() == [975, 438, 1006]
    assert buckets.shard_name(0, "arrow") == "train-00000-of-01000.arrow"
    assert buckets.shard_name(1003, "webdataset") == "validation-00003-of-00010.tar"


@pytest.mark.parametrize("validation", [0.0, 0.01, 0.5])
def test_the_fraction_of_held_out_documents(validation):
    high, low = many()
    buckets = Buckets.plan(DataConfig(num_shards=20, validation=validation), 0)
    share = (buckets.of(high, low) >= buckets.num_train).mean()
    assert abs(share - validation) <= 5 * np.sqrt(validation * (1 - validation) / len(high))
    assert buckets.num_validation == 20 * validation or (validation, len(buckets)) == (0.01, 21)


def test_documents_are_spread_evenly_over_shards():
    high, low = many()
    buckets = Buckets(num_train=16, num_validation=8, validation=0.3)
    counts = np.bincount(buckets.of(high, low), minlength=24)
    for part, share in ((counts[:16], 0.7 / 16), (counts[16:], 0.3 / 8)):
        expected = len(high) * share
        assert (abs(part - expected) < 5 * np.sqrt(expected)).all()


def test_the_held_out_documents_do_not_depend_on_the_number_of_shards():
    high, low = many(2000)
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


def test_any_validation_fraction_has_a_shard():
    assert Buckets.plan(DataConfig(num_shards=1, validation=0.001), 0).num_validation == 1
    assert Buckets.plan(DataConfig(num_shards=100, validation=0.01), 0).num_validation == 1
    assert Buckets.plan(DataConfig(num_shards=101, validation=0.01), 0).num_validation == 2
    assert Buckets.plan(DataConfig(num_shards=100, validation=0.0), 0).num_validation == 0
