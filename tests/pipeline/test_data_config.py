"""The data config: impossible values are refused, and it survives the manifest."""

import json
import math
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.config import CURATION, DataConfig, PairScheme

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
    seed=st.integers(0, 2**63 - 1),
)


@given(CONFIGS)
def test_a_config_survives_json(config):
    assert DataConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_field_reaches_the_manifest():
    names = [field.name for field in fields(DataConfig)]
    assert list(DataConfig().to_dict()) == [name for name in names if name not in CURATION]
    curated = DataConfig(deduplicate="near", similarity=0.7)
    stored = curated.to_dict()
    assert (stored["deduplicate"], stored["similarity"]) == ("near", 0.7)
    assert DataConfig.from_dict(stored) == curated


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_seq_length": 65_536}, "max_seq_length is 65536"),
        ({"max_seq_length": 7}, "max_seq_length is 7; it must be 8 to 65535."),
        ({"num_shards": 0}, "num_shards is 0"),
        ({"validation": 0.6}, "validation is 0.6; it must be 0.0 to 0.5."),
        ({"validation": math.nan}, "validation is nan"),
        ({"max_rejected": 1.1}, "max_rejected is 1.1"),
        ({"short_seq_prob": 2}, "short_seq_prob is 2"),
        ({"masked_lm_prob": 0}, "masked_lm_prob is 0"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq is 0"),
        ({"masking": "spans"}, "masking is 'spans'; it must be one of tokens, whole-words."),
        ({"mask_token_prob": math.nan}, "mask_token_prob is nan"),
        ({"random_token_prob": -0.1}, "random_token_prob is -0.1"),
        ({"mask_token_prob": 0.8, "random_token_prob": 0.3},
         "mask_token_prob 0.8 and random_token_prob 0.3 sum to more than 1; lower one of them."),
        ({"dupe_factor": 0}, "dupe_factor is 0"),
        ({"min_characters": -1}, "min_characters is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"pairs": "all"},
         "pairs is 'all'; it must be one of segments, order, sentences, none, packed."),
        ({"format": "tfrecord"}, "format is 'tfrecord'; it must be one of arrow, webdataset."),
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


def test_the_default_replacement_is_80_10_10():
    config = DataConfig()
    assert (config.mask_token_prob, config.random_token_prob) == (0.8, 0.1)
    assert config.keep_token_prob == pytest.approx(0.1)


def test_the_kept_fraction_is_never_negative():
    for mask in (0.0, 0.1, 0.3, 0.6, 0.7, 0.9, 1.0):
        config = DataConfig(mask_token_prob=mask, random_token_prob=round(1 - mask, 1))
        assert 0 <= config.keep_token_prob == pytest.approx(0)


def test_a_stored_config_with_other_fields_is_from_another_version():
    stored = {**DataConfig().to_dict(), "whole_word": True}
    del stored["seed"], stored["pairs"]
    message = "by another version of Clozeline: unknown whole_word; missing pairs, seed$"
    with pytest.raises(ValueError, match=message):
        DataConfig.from_dict(stored)
