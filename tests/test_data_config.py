"""The data config: it says no to what cannot be, and comes back from a manifest as it was."""

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import DataConfig

CONFIGS = st.builds(
    DataConfig,
    num_shards=st.none() | st.integers(1, 100_000),
    validation=st.floats(0, 0.5),
    pairs=st.sampled_from(["segments", "sentences", "none"]),
    max_seq_length=st.integers(8, 65_535),
    masked_lm_prob=st.floats(0.01, 1.0),
    max_predictions_per_seq=st.none() | st.integers(1, 65_535),
    whole_word=st.booleans(),
    text_columns=st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
    seed=st.integers(0, 2**63 - 1),
)


@given(CONFIGS)
def test_a_config_comes_back_from_json(config):
    assert DataConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_field_reaches_the_manifest():
    assert list(DataConfig().to_dict()) == [field.name for field in fields(DataConfig)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_seq_length": 7}, "max_seq_length is 7; it lies between 8 and 65535."),
        ({"max_seq_length": 65_536}, "max_seq_length is 65536"),
        ({"num_shards": 0}, "num_shards is 0"),
        ({"validation": -0.1}, "validation is -0.1"),
        ({"validation": 0.6}, "validation is 0.6; it lies between 0.0 and 0.5."),
        ({"validation": math.nan}, "validation is nan"),
        ({"max_rejected": 1.1}, "max_rejected is 1.1"),
        ({"short_seq_prob": 2}, "short_seq_prob is 2"),
        ({"masked_lm_prob": 0}, "masked_lm_prob is 0"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq is 0"),
        ({"dupe_factor": 0}, "dupe_factor is 0"),
        ({"min_characters": -1}, "min_characters is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"pairs": "all"}, "pairs is 'all'; it is one of segments, sentences, none."),
        ({"format": "tfrecord"}, "format is 'tfrecord'; it is one of arrow, webdataset."),
        ({"compression": "gzip"}, "compression is 'gzip'; it is one of none, lz4, zstd."),
        ({"text_columns": ()}, "text_columns is empty; name the column that holds the text."),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_found_and_what_may_be(values, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        DataConfig(**values)


@pytest.mark.parametrize(
    ("length", "prob", "given", "predictions"),
    [(128, 0.15, None, 20), (512, 0.15, None, 77), (128, 0.15, 5, 5), (8, 1.0, None, 8)],
)
def test_the_most_predictions_follow_from_length_and_share_unless_given(
    length, prob, given, predictions
):
    config = DataConfig(max_seq_length=length, masked_lm_prob=prob, max_predictions_per_seq=given)
    assert config.predictions == predictions
