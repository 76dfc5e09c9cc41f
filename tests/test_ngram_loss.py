"""The n-gram yardsticks of a data set: what they read, and what they reach on text."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.examples.masks import MaskRules
from clozeline.train.cli import main
from clozeline.train.evaluation.ngram_loss import ngram_losses
from clozeline.train.evaluation.ngrams import TrigramModel
from tests.support.small import small_tokenizer
from tests.support.small_data import random_examples, write_data_set
from tests.support.small_jobs import clozeline_ok, write_parquet, write_tokenizer
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

DATA = os.environ.get("CLOZELINE_DATA")
TOKENIZER = small_tokenizer()
CONFIG = DataConfig(max_seq_length=16, num_shards=1, max_predictions_per_seq=3)
CHAIN = TOKENIZER.replacement_ids[:6].astype(np.int64)


def chain_examples(rows, *, split, **options):
    """Random rows whose tokens run through a cycle of six, now and then skipping one."""
    examples = random_examples(rows, split=split, **options)
    rng = np.random.default_rng(len(split))
    ids = examples.input_ids.values.astype(np.int64)
    steps = np.cumsum(1 + (rng.random(len(ids)) < 0.1))
    ids = np.where(TOKENIZER.is_special[ids], ids, CHAIN[steps % 6])
    return replace(examples, input_ids=Ragged(ids.astype(np.uint16), examples.input_ids.offsets))


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    return write_data_set(
        folder, train=(400,), validation=(60, 40), config=CONFIG, make=chain_examples
    )


def unigram_loss(folder):
    counts = np.array(read_manifest(folder).token_counts) + 1
    shards = [read_shard(path) for path in sorted(folder.glob("validation-*"))]
    labels = np.concatenate([shard.masked_lm_labels.values for shard in shards])
    return -np.log(counts / counts.sum())[labels].mean()


def test_neighbours_predict_what_words_alone_do_not(chain):
    found = ngram_losses(chain, limit=None, max_tokens=10**6)
    assert unigram_loss(chain) == pytest.approx(np.log(6), abs=0.1)
    assert found.trigram_with_input_loss < found.trigram_loss < 0.8
    assert found.trigram_loss < unigram_loss(chain) - 0.9
    assert found.bigram_loss < unigram_loss(chain) - 0.9


def test_each_loss_equals_one_position_after_the_other(chain):
    """The formula of the module's docstring, a masked token at a time."""
    tokens = read_shard(next(chain.glob("train-*"))).unmasked().input_ids.values
    examples = read_shard(min(chain.glob("validation-*")))
    rules = MaskRules.of(CONFIG, TOKENIZER)
    size = TOKENIZER.vocab_size
    losses = []
    for row in range(20):
        shown = slice(*examples.input_ids.offsets[row : row + 2])
        masked = slice(*examples.masked_lm_positions.offsets[row : row + 2])
        original = examples.unmasked().input_ids.values[shown].astype(np.int64)
        visible = original.copy()
        visible[examples.masked_lm_positions.values[masked]] = -1
        # A row follows on the [SEP] of another, and [CLS] of a third comes after it.
        visible = np.array([TOKENIZER.sep_id, *visible, TOKENIZER.cls_id])
        for at in examples.masked_lm_positions.values[masked].astype(np.int64) + 1:
            before, after = (
                TrigramModel(text, near, far, vocab_size=size).probabilities(near, far, order=3)[0]
                for text, near, far in (
                    (tokens, visible[at - 1 : at], visible[at - 2 : at - 1]),
                    (tokens[::-1], visible[at + 1 : at + 2], visible[at + 2 : at + 3]),
                )
            )
            counts = np.bincount(tokens, minlength=size) + 1
            scores = before.astype(float) * after * counts.sum() / counts
            scores[TOKENIZER.is_special] = 0
            label, read = original[at - 1], examples.input_ids.values[shown][at - 1]
            plain = -np.log(scores[label] / scores.sum())
            if read != TOKENIZER.mask_id:
                scores *= 0.1 / len(rules.replacement_ids) + 0.1 * (np.arange(size) == read)
            losses.append((plain, -np.log(scores[label] / scores.sum())))
    found = ngram_losses(chain, limit=20, max_tokens=10**6)
    expected = np.mean(losses, axis=0)
    assert [found.trigram_loss, found.trigram_with_input_loss] == pytest.approx(expected, rel=1e-4)


def test_fewer_tokens_are_counted_if_asked(chain):
    few = ngram_losses(chain, limit=None, max_tokens=100)
    assert few.ngram_tokens == 100
    assert few.trigram_loss > ngram_losses(chain, limit=None, max_tokens=10**6).trigram_loss


@pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set: no real text")
def test_on_real_text_each_order_is_better_than_the_one_below(tmp_path):
    file = pq.ParquetFile(min(Path(DATA or "").glob("wikipedia/train-*.parquet")))
    texts = file.read_row_group(0, columns=["text"])["text"].to_pylist()[:600]
    source = write_parquet(tmp_path / "wikipedia.parquet", texts)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    out = tmp_path / "shards"
    options = ("--pairs=none", "--max-seq-length=64", "--validation=0.1", "--num-shards=1")
    clozeline_ok("shards", source, "--tokenizer", tokenizer, "--out", out, *options, "--workers=1")
    found = ngram_losses(out, limit=300, max_tokens=10**7)
    assert found.trigram_loss < found.bigram_loss - 0.1
    assert found.bigram_loss < unigram_loss(out) - 1


def test_evaluate_prints_and_writes_the_yardsticks(chain, tmp_path):
    run = write_small_run(
        tmp_path / "run", BertForPretraining(TINY, seed=1), TOKENIZER, max_seq_length=16
    )
    line = ["evaluate", str(run), str(chain), "--limit=20", "--json", str(tmp_path / "out.json")]
    done = CliRunner().invoke(main, [*line, "--ngrams", "--ngram-tokens=5000"])
    assert done.exit_code == 0, done.output
    values = json.loads((tmp_path / "out.json").read_bytes())
    expected = ngram_losses(chain, limit=20, max_tokens=5000)
    assert values == values | expected.to_dict()
    assert values["examples"] == 20
    assert f"n-grams of {expected.ngram_tokens:,} tokens" in done.output
    assert f"trigram           {expected.trigram_loss:6.3f}\n" in done.output
    done = CliRunner().invoke(main, [*line, "--ngrams", "--split=train"])
    assert done.exit_code == 2
    assert "--ngrams counts the training examples; use --split validation." in done.output
