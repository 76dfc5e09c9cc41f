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


def uint16(values, in_rows=2):
    """A column with as many values in each of 30 rows."""
    return Ragged(np.array(values, np.uint16), np.arange(31) * in_rows)


def masked(*first):
    """Masked positions 2 and 5 in each row but the first."""
    return {"masked_lm_positions": uint16([*first, *[2, 5] * 29])}


#: Of rows [CLS] w w [SEP] w w w [SEP] with two masks.
IMPOSSIBLE = [
    ({"length_a": np.full(30, 9, np.uint16)}, "a length_a that does not fit its row"),
    ({"length_a": np.zeros(30, np.uint16)}, "a length_a that does not fit its row"),
    ({"next_sentence_label": np.full(30, 2, np.int8)}, "that is not -1, 0 or 1"),
    ({"next_sentence_label": np.full(30, -2, np.int8)}, "that is not -1, 0 or 1"),
    (masked(5, 2), "that are not ascending"),
    (masked(5, 5), "that are not ascending"),
    (masked(2, 8), "beyond their row"),
    ({"masked_lm_labels": uint16([6] * 30, 1)}, "more or fewer labels than masked positions"),
]


@pytest.mark.parametrize(("changes", "complaint"), [({}, None), *IMPOSSIBLE])
def test_rows_that_cannot_be_are_refused_although_the_file_is_whole(tmp_path, changes, complaint):
    examples = make_examples([[1, 7, 8, 2, 9, 9, 9, 2]] * 30, length_a=[4] * 30)
    rows = replace(examples, **{**masked(2, 5), "masked_lm_labels": uint16([6] * 60), **changes})
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
