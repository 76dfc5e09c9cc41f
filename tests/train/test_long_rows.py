"""Rows of up to 8,192 tokens: shards, masks, the loader, a step of training."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.data.batch import collate
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import POOL_ROWS, pool_rows_for
from clozeline.train.monitoring.metrics import read_metrics
from tests.pipeline.test_examples import examples_of
from tests.pipeline.test_row_checks import findings_of
from tests.support.small import make_documents, small_tokenizer
from tests.support.small_data import packed_examples, write_data_set
from tests.support.small_models import narrow
from tests.support.small_training import train

LONGEST = 8192
CONFIG = DataConfig(max_seq_length=LONGEST, num_shards=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("long")
    config = replace(CONFIG, pairs="packed")
    return write_data_set(out, train=(5,), validation=(2,), config=config)


@pytest.mark.parametrize("pairs", ["segments", "none", "packed"])
def test_a_document_of_twenty_thousand_tokens_makes_sound_rows(pairs):
    words = small_tokenizer().replacement_ids.astype(np.uint16)
    ids = np.resize(words, 20_400)
    documents = make_documents([[[500] * 40], [[400]]], ids=ids)
    config = replace(CONFIG, pairs=pairs)
    examples, _ = examples_of(documents, config)
    assert findings_of(examples, config) == []
    assert examples.input_ids.lengths.max() == LONGEST
    assert examples.masked_lm_positions.lengths.max() == round(0.15 * LONGEST)
    assert examples.masked_lm_positions.values.max() > 8000


def test_long_rows_come_back_from_the_loader_as_they_are_stored(folder):
    stored = read_shard(folder / read_manifest(folder).shards[0].name)
    [padded], [unpadded] = (
        list(islice(Loader(folder, batch_size=5, seed=0, prefetch=0, unpadded=x), 1))
        for x in (False, True)
    )
    assert padded.digest == unpadded.digest
    assert padded.num_tokens == stored.input_ids.offsets[-1]
    assert padded.batch.masked_lm_positions.shape == (5, -(-LONGEST * 15 // 100))
    rows = {tuple(row.tolist()) for row in padded.batch.input_ids}
    for row in range(5):
        ids = stored.slice(row, row + 1).input_ids.values.tolist()
        assert tuple(ids + [small_tokenizer().pad_id] * (LONGEST - len(ids))) in rows


def test_a_batch_wider_than_the_table_of_prefixes_is_padded_alike():
    examples = packed_examples(
        7, split="train", shard=0, config=replace(CONFIG, max_seq_length=900), of=small_tokenizer()
    )
    options = {"max_predictions": 3, "pad_id": 0}
    rows = np.arange(7)
    narrow_batch, wide = (
        collate(examples, rows, max_seq_length=width, **options) for width in (1000, 3000)
    )
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        ours, theirs = wide.tensors()[name], narrow_batch.tensors()[name]
        assert torch.equal(ours[:, :1000], theirs)
        assert not ours[:, 1000:].any()


def test_a_pool_of_long_rows_has_fewer_of_them():
    lengths = (16, 128, 512, 1024, 8192, 65_535)
    found = [pool_rows_for(length) for length in lengths]
    assert found == [POOL_ROWS, POOL_ROWS, POOL_ROWS, 131_072, 16_384, 2_048]


@pytest.mark.slow
def test_a_step_on_rows_of_8192_tokens(folder, tmp_path):
    model = replace(
        narrow("modern-mini"),
        vocab_size=small_tokenizer().vocab_size,
        max_position_embeddings=LONGEST,
        num_attention_heads=1,
        hidden_size=16,
        intermediate_size=32,
    )
    train(folder, tmp_path / "run", model=model, max_steps=1, batch_size=2, micro_batch_size=1)
    [first, heldout] = read_metrics(tmp_path / "run")
    assert np.isfinite(first["mlm_loss"])
    assert heldout["heldout/examples"] == 2
