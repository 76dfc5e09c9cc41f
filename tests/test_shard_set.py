"""The shards that training reads: what is damaged or cannot be is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

from clozeline.pipeline.common.errors import CorruptDataError
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.pipeline.dataset.shards import write_shard
from clozeline.train.data.shard_set import ShardSet
from tests.support.small import make_examples
from tests.support.small_data import SMALL, write_data_set


def read(folder, split):
    """The rows of the first shard, with nothing checked but what is checked by default."""
    return ShardSet(folder, split).read(0)


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_wrong_byte_is_noticed_and_its_shard_named(tmp_path, split, format):
    folder = write_data_set(
        tmp_path / "data", train=(30,), validation=(30,), config=replace(SMALL, format=format)
    )
    [path] = folder.glob(f"{split}-*")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in [0, len(whole) - 1, *rng.integers(0, len(whole), 40)]:
        path.write_bytes(whole[:i] + bytes([whole[i] ^ rng.integers(1, 256)]) + whole[i + 1 :])
        with pytest.raises(CorruptDataError, match=f"{path.name} is damaged"):
            read(folder, split)


def example_rows(**changes):
    """30 rows of [CLS] w w [SEP] w w w [SEP] with two masks, changed."""
    examples = make_examples([[1, 7, 8, 2, 9, 9, 9, 2]] * 30, length_a=[4] * 30)
    positions = Ragged(np.tile(np.array([2, 5], np.uint16), 30), np.arange(31) * 2)
    labels = Ragged(np.full(60, 6, np.uint16), np.arange(31) * 2)
    masks = {"masked_lm_positions": positions, "masked_lm_labels": labels}
    return replace(examples, **(masks | changes))


def ragged_positions(*first):
    return Ragged(np.array([*first, *[2, 5] * 29], np.uint16), np.arange(31) * 2)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (example_rows(), None),
        (example_rows(length_a=np.full(30, 9, np.uint16)), "a length_a that does not fit its row"),
        (example_rows(length_a=np.zeros(30, np.uint16)), "a length_a that does not fit its row"),
        (example_rows(next_sentence_label=np.full(30, 2, np.int8)), "that is not -1, 0 or 1"),
        (example_rows(next_sentence_label=np.full(30, -2, np.int8)), "that is not -1, 0 or 1"),
        (example_rows(masked_lm_positions=ragged_positions(5, 2)), "that are not ascending"),
        (example_rows(masked_lm_positions=ragged_positions(5, 5)), "that are not ascending"),
        (example_rows(masked_lm_positions=ragged_positions(2, 8)), "beyond their row"),
        (
            example_rows(masked_lm_labels=Ragged(np.full(30, 6, np.uint16), np.arange(31))),
            "more or fewer labels than masked positions",
        ),
    ],
)
def test_rows_that_cannot_be_are_refused_although_the_file_is_whole(tmp_path, rows, complaint):
    folder = write_data_set(tmp_path / "data", train=(30,))
    manifest, path = read_manifest(folder), folder / "train-00000-of-00001.arrow"
    schema = example_schema(manifest.vocab_size, manifest.tokenizer_digest)
    entry = write_shard(path, rows, schema, format="arrow", compression=None)
    write_manifest(folder, replace(manifest, shards=[entry]))
    if complaint is None:
        assert len(read(folder, "train")) == 30
        return
    with pytest.raises(CorruptDataError, match=rf"is damaged \(.*{complaint}"):
        read(folder, "train")
