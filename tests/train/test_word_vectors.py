"""Word embeddings from co-occurrence counts: counts, formulas, and what the model gets."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World
from clozeline.train.pretraining import word_vectors as module
from clozeline.train.pretraining.word_vectors import start_at_word_vectors, word_vectors
from tests.support.command import output_of, refused
from tests.support.small import WORDS, make_examples, small_tokenizer
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import STILL, assert_same_run, command_line, go_back, numbers

TOKENIZER = small_tokenizer()
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module", params=[SMALL, replace(SMALL, pairs="packed")])
def shards(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return ShardSet(write_data_set(folder, train=(40, 0, 30), config=request.param), "train")


def counted_one_by_one(shards, contexts):
    """The table of counts, pair by pair."""
    counts = np.zeros((shards.manifest.vocab_size, len(contexts)))
    column = {word: number for number, word in enumerate(contexts)}
    for shard in range(3):
        ids = shards.read(shard).unmasked().input_ids
        for begin, end in zip(ids.offsets[:-1], ids.offsets[1:], strict=True):
            row = ids.values[begin:end]
            for at, word in enumerate(row):
                for other in range(at + 1, min(at + 4, len(row))):
                    if TOKENIZER.is_special[row[at : other + 1]].any():
                        break
                    for one, near in ((word, row[other]), (row[other], word)):
                        if near in column:
                            counts[one, column[near]] += 1 / (other - at)
    return counts


@pytest.mark.parametrize("slab", [1, 100, 10_000])  # tokens: rows of 16
def test_counts_are_those_of_all_pairs_of_a_sequence(shards, slab, monkeypatch):
    monkeypatch.setattr(module, "SLAB", slab)
    contexts = np.array([9, 5, 20, 12])
    found = module._neighbour_counts(shards, contexts)
    np.testing.assert_allclose(found, counted_one_by_one(shards, contexts.tolist()), rtol=1e-6)


def test_vectors_are_a_factor_of_the_mutual_information(shards):
    """With all dimensions: X X' is the square root of M M', for M from the definition."""
    words = np.array(shards.manifest.token_counts) > 0
    counts = counted_one_by_one(shards, np.flatnonzero(words).tolist())
    total, smoothed = counts.sum(), counts.sum(0) ** 0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = (counts.sum(1, keepdims=True) / total) * (smoothed / smoothed.sum())
        matrix = np.nan_to_num(np.maximum(np.log(counts / total / chance), 0.0))
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    wanted = (left * values) @ left.T
    vectors = word_vectors(shards, 1000, seed=0)
    np.testing.assert_allclose(vectors @ vectors.T, wanted, atol=1e-3)
    assert vectors.any(1).tolist() == words.tolist()


def test_few_dimensions_are_the_strongest():
    """As near to the matrix as any of that rank (Eckart & Young 1936)."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(300, 5, generator=generator), torch.randn(5, 200, generator=generator)
    matrix = factors[0] @ factors[1] + 1e-3 * torch.randn(300, 200, generator=generator)
    left, values, _ = torch.linalg.svd(matrix)
    wanted = (left[:, :5] * values[:5]) @ left[:, :5].T
    found = module._left_singular_vectors(matrix, 5, seed=0)
    assert found.shape == (300, 5)
    torch.testing.assert_close(found @ found.T, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_starts_at_the_vectors_of_the_words_that_occur(shards, is_tied):
    config = replace(STILL, tie_word_embeddings=is_tied)
    model, before = (BertForPretraining(config, seed=3) for _ in range(2))
    start_at_word_vectors(model, shards, ALONE, seed=3)
    vectors = word_vectors(shards, config.hidden_size, seed=3)
    has_vector = vectors.any(1)
    assert 20 < has_vector.sum() <= len(WORDS) + 9
    changed = {"encoder.embeddings.word_embeddings.weight", "mlm_head.decoder.weight"}
    for name, weight in model.state_dict().items():
        old = before.state_dict()[name]
        if name not in changed:
            assert torch.equal(weight, old), name
            continue
        weight, rest = weight[: len(vectors)], weight[len(vectors) :]
        assert weight[has_vector].std().item() == pytest.approx(config.initializer_range)
        parallel = torch.nn.functional.cosine_similarity(weight, vectors)[has_vector]
        torch.testing.assert_close(parallel, torch.ones_like(parallel))
        assert torch.equal(weight[~has_vector], old[: len(vectors)][~has_vector])
        assert not rest.any()
    assert (model.mlm_head.decoder is None) == is_tied


def test_more_dimensions_than_words_leave_the_others_as_drawn(shards):
    config = replace(STILL, hidden_size=128, num_attention_heads=2)
    model, before = (BertForPretraining(config, seed=0) for _ in range(2))
    start_at_word_vectors(model, shards, ALONE, seed=0)
    found, old = (one.encoder.embeddings.word_embeddings.weight for one in (model, before))
    width = word_vectors(shards, 128, seed=0).shape[1]
    assert width < 64
    assert torch.equal(found[:, width:], old[:, width:])
    assert not torch.equal(found[:, :width], old[:, :width])


def test_text_of_one_word_leaves_the_model_as_drawn(tmp_path):
    word = TOKENIZER.tokens.index("cat")
    folder = write_data_set(
        tmp_path, train=(9,), make=lambda rows, **_: make_examples([[2, word, 3]] * rows)
    )
    model, before = (BertForPretraining(STILL, seed=0) for _ in range(2))
    start_at_word_vectors(model, ShardSet(folder, "train"), ALONE, seed=0)
    assert all(torch.equal(x, before.state_dict()[k]) for k, x in model.state_dict().items())


def test_a_resumed_run_starts_at_its_checkpoint_and_a_given_model_refuses(small_folder, tmp_path):
    out, plain, other = (tmp_path / name for name in ("run", "plain", "other"))
    output_of(*command_line(small_folder, out, "--word-vectors"))
    again = go_back(shutil.copytree(out, tmp_path / "again"), 4)
    output_of(*command_line(small_folder, again, "--resume"))
    assert read_run(again).training.word_vectors
    assert_same_run(again, out)
    output_of(*command_line(small_folder, plain, max_steps=1))
    first, without = numbers(out)[0], numbers(plain)[0]
    assert first["data_digest"] == without["data_digest"]
    assert first["mlm_loss"] != without["mlm_loss"]
    line = command_line(small_folder, other, "--word-vectors", "--start-from", out)
    assert refused(*line) == (
        f"--word-vectors initializes a new model, and this one starts from {out}; give "
        "--no-word-vectors."
    )
    assert not other.exists()
