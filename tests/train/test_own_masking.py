"""Masks by a function of the user's program."""

from functools import partial

import numpy as np
import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.data.loader import Loader
from tests.support.small_data import write_data_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("own"), train=(24, 16))


def second_tokens(input_ids, offsets, random):
    """The token after [CLS] of each row."""
    is_chosen = np.zeros(len(input_ids), bool)
    is_chosen[offsets[:-1] + 1] = True
    return is_chosen


def some(input_ids, offsets, random):
    assert random.dtype == np.float64
    assert 0 <= random.min() <= random.max() < 1
    return random < 0.1


def batches(folder, masking, steps, **options):
    loader = Loader(folder, batch_size=8, seed=0, masking=masking, **options)
    return [loaded.batch for loaded, _ in zip(loader, range(steps), strict=False)]


def test_the_function_decides_in_every_epoch_which_tokens_are_masked(folder):
    manifest, tokenizer = read_manifest(folder), load_tokenizer(folder / "tokenizer")
    steps = 2 * manifest.num_examples("train") // 8
    for batch in batches(folder, second_tokens, steps):
        assert batch.masked_lm_weights.sum(1).eq(1).all()
        assert batch.masked_lm_positions[:, 0].eq(1).all()
        allowed = torch.tensor([tokenizer.mask_id, *tokenizer.replacement_ids.tolist()])
        at_place, labels = batch.input_ids[:, 1], batch.masked_lm_labels[:, 0]
        assert (torch.isin(at_place, allowed) | (at_place == labels)).all()
    masked = torch.cat([batch.input_ids[:, 1] for batch in batches(folder, second_tokens, steps)])
    assert 0.6 < masked.eq(tokenizer.mask_id).float().mean() < 0.95  # 80 %


def test_of_more_than_fit_those_with_the_lowest_numbers_are_masked(folder):
    [batch] = batches(folder, lambda ids, offsets, random: random < 2, 1)
    most = read_manifest(folder).config.predictions
    tokens = batch.attention_mask.sum(1) - 2 - batch.token_type_ids.any(1).long()
    assert torch.equal(batch.masked_lm_weights.sum(1), tokens.clamp(max=most).float())


def test_special_tokens_stay(folder):
    [batch] = batches(folder, lambda ids, offsets, random: ids < 5, 1)
    assert batch.masked_lm_weights.sum() == 0


def test_the_random_numbers_follow_the_row_and_the_epoch_alone(folder):
    whole = batches(folder, some, 10)
    for rank in range(2):
        part = batches(folder, some, 10, rank=rank, world_size=2)
        for all_ranks, own in zip(whole, part, strict=True):
            assert torch.equal(all_ranks.input_ids[rank::2], own.input_ids)
    first, second = (torch.cat([b.input_ids for b in half]) for half in (whole[:5], whole[5:]))
    assert not torch.equal(first.sort(0).values, second.sort(0).values)


@pytest.mark.parametrize(
    ("masking", "complaint"),
    [
        (lambda ids, offsets, random: random, "masking gave float64"),
        (lambda ids, offsets, random: np.flatnonzero(random < 0.1), "masking gave int64"),
        (lambda ids, offsets, random: random[:3] < 1, r"masking gave bool \[3\]"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line(folder, masking, complaint):
    with pytest.raises(InputError, match=complaint):
        batches(folder, masking, 1)


def test_a_position_with_another_function_is_refused(folder):
    loader = Loader(folder, batch_size=8, seed=0, masking=second_tokens)
    state = loader.state_dict()
    with pytest.raises(InputError, match=r"masking '.*second_tokens' there, None now"):
        Loader(folder, batch_size=8, seed=0).load_state_dict(state)
    loader.load_state_dict(state)


def test_a_function_without_a_name_is_taken(folder):
    loader = Loader(folder, batch_size=8, seed=0, masking=partial(some))
    assert loader.state_dict()["masking"] == "functools.partial"
    [batch] = batches(folder, partial(some), 1)
    assert torch.equal(batch.input_ids, batches(folder, some, 1)[0].input_ids)
