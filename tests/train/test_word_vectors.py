"""Word embeddings from co-occurrence counts, and the loss over a sample of words."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.cpu_kernels import sampled_cross_entropies
from clozeline.model.heads import BertForPretraining, WordSample
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World
from clozeline.train.pretraining import word_vectors as module
from clozeline.train.pretraining.step import WordSampler, forward_losses
from clozeline.train.pretraining.word_vectors import start_at_word_vectors, word_vectors
from tests.support.command import output_of, refused
from tests.support.small import WORDS, small_tokenizer
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_models import gradients
from tests.support.small_training import STILL, command_line, numbers
from tests.train.test_step import make_batch

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


def test_each_option_changes_the_first_loss_and_a_given_model_refuses_vectors(
    small_folder, tmp_path
):
    out, other = tmp_path / "vectors", tmp_path / "other"
    options = {"plain": (), "vectors": ("--word-vectors",), "sample": (f"--sampled-words={SIZE}",)}
    for name, words in options.items():
        output_of(*command_line(small_folder, tmp_path / name, *words, max_steps=1))
    first = [numbers(tmp_path / name)[0] for name in options]
    assert len({line["data_digest"] for line in first}) == 1
    assert len({line["mlm_loss"] for line in first}) == 3
    line = command_line(small_folder, other, "--word-vectors", "--from", out)
    assert refused(*line) == (
        f"--word-vectors initializes a new model, and this one starts from {out}; give "
        "--no-word-vectors."
    )
    assert not other.exists()


# --- The masked-LM loss over a sample of words: its formula, its gradients, and which words -------
SIZE = 20


def losses_with(sample):
    """The sums of the losses of a batch, and the gradients."""
    model = BertForPretraining(STILL, seed=3).train()
    losses, hits = forward_losses(
        model, make_batch().batch, is_full=False, count_hits=True, sample=sample
    )
    losses.sum().backward()
    return losses.detach(), hits, gradients(model)


def test_a_sample_of_all_words_gives_the_loss_and_gradients_of_the_vocabulary():
    every = torch.randperm(STILL.vocab_size, generator=torch.Generator().manual_seed(0))
    found = losses_with(WordSample(every, torch.zeros(STILL.vocab_size)))
    torch.testing.assert_close(found, losses_with(None))


def test_a_smaller_sample_is_an_estimate_and_predictions_are_still_of_all_words():
    sample = WordSampler(np.arange(STILL.vocab_size), SIZE, seed=0).at(1)
    (found, hits, _), (wanted, all_hits, _) = losses_with(sample), losses_with(None)
    assert 0.8 * wanted[0] < found[0] < 1.2 * wanted[0]
    assert found[0] != wanted[0]
    assert found[1] == wanted[1]  # pairs have two classes
    assert torch.equal(hits, all_hits)


def test_the_mean_over_samples_is_the_denominator_of_all_words():
    """For a label that is always in the sample, for one that sometimes is, and for both once."""
    words = 40
    logits = torch.randn(words, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sampler = WordSampler(np.arange(words)[::-1], SIZE, seed=5)
    labels = torch.tensor([0, 39])  # the most frequent word, the rarest
    assert 0 in sampler.frequent
    total, count = torch.zeros(2, dtype=torch.float64), 1000
    for step in range(count):
        sample = sampler.at(step)
        columns = torch.full((words,), -1)
        columns[sample.words] = torch.arange(SIZE)
        rows = (logits[sample.words] + sample.log_weights).float().expand(2, -1)
        own = logits[labels].float()
        losses = sampled_cross_entropies(rows.clone(), own, columns[labels])
        total += (losses + own).double().exp()
    wanted = logits.exp().sum()
    torch.testing.assert_close(total / count, wanted.expand(2), rtol=0.01, atol=0.0)


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 40),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_losses_and_gradients_are_those_of_a_softmax_without_the_label_twice(
    rows, columns, seed, dtype
):
    generator = torch.Generator().manual_seed(seed)
    logits = (5 * torch.randn(rows, columns, generator=generator)).to(dtype)
    own = torch.randn(rows, generator=generator)
    at = torch.randint(-1, columns, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator)

    def reference(logits, own):
        is_own = F.one_hot(at.clamp(min=0), columns).bool() & (at >= 0)[:, None]
        others = logits.float().masked_fill(is_own, float("-inf"))
        return F.cross_entropy(
            torch.cat([own[:, None], others], 1), torch.zeros(rows, dtype=int), reduction="none"
        )

    def found(losses):
        inputs = logits.clone().requires_grad_(), own.clone().requires_grad_()
        values = losses(*inputs)
        (values * weights).sum().backward()
        return values.detach(), *(x.grad for x in inputs)

    ours = found(lambda logits, own: sampled_cross_entropies(logits, own, at))
    tolerance = {"rtol": 0.01, "atol": 1e-3} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(ours, found(reference), **tolerance)
    assert ours[1].dtype == dtype


def test_samples_are_distinct_words_and_depend_on_seed_and_step_alone():
    counts = np.random.default_rng(0).integers(0, 1000, 500)
    first, again = (WordSampler(counts, 100, seed=1) for _ in range(2))
    frequent = set(np.argsort(-counts, kind="stable")[:10])
    seen = set()
    for step in (7, 3, 3000):
        sample = first.at(step)
        words = sample.words.tolist()
        assert len(set(words)) == 100
        assert set(words[:10]) == frequent
        assert sample.log_weights[:10].eq(0).all()
        torch.testing.assert_close(sample.log_weights[10:].exp(), torch.full((90,), 490 / 90))
        assert sample.words.equal(again.at(step).words)
        assert not sample.words.equal(WordSampler(counts, 100, seed=2).at(step).words)
        seen.add(tuple(words))
    assert len(seen) == 3
