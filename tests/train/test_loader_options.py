"""The loader's options: unpadded rows, shards of a store, masks of one's own."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import CorruptDataError, InputError
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import latest_checkpoint, read_state
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.unpadded import with_dummy_rows
from tests.support.batches import concatenate_unpadded
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import (
    STILL,
    assert_same_run,
    go_back,
    numbers,
    train,
)
from tests.train.test_loader import GLOBAL, counts, digest_of, load, of_ranks, rows_of


def test_an_unpadded_batch_has_the_tokens_of_the_padded_one(small_folder):
    all_padded, all_unpadded = load(small_folder, 12), load(small_folder, 12, unpadded=True)
    for padded, unpadded in zip(all_padded, all_unpadded, strict=True):
        is_token, batch = padded.batch.attention_mask, unpadded.batch
        is_masked = padded.batch.masked_lm_weights > 0
        starts = batch.cu_seqlens[:-1].long()
        assert torch.equal(batch.input_ids, padded.batch.input_ids[is_token])
        assert torch.equal(batch.token_type_ids, padded.batch.token_type_ids[is_token])
        assert torch.equal(batch.position_ids, is_token.nonzero()[:, 1])
        assert torch.equal(batch.cu_seqlens.diff(), is_token.sum(1).int())
        assert batch.cu_seqlens.dtype == torch.int32
        assert batch.max_seqlen == 16
        flat = (padded.batch.masked_lm_positions + starts[:, None])[is_masked]
        assert torch.equal(batch.masked_lm_positions, flat)
        assert torch.equal(batch.masked_lm_labels, padded.batch.masked_lm_labels[is_masked])
        assert torch.equal(batch.next_sentence_labels, padded.batch.next_sentence_labels)
        assert replace(unpadded, batch=None) == replace(padded, batch=None)  # also the digest


def test_a_dummy_row_rounds_tokens_and_slots_up(small_folder):
    for batch in (loaded.batch for loaded in load(small_folder, 12, unpadded=True)):
        found = with_dummy_rows(batch)
        tokens, masked = batch.num_tokens, len(batch.masked_lm_labels)
        assert (found.num_tokens % 16, len(found.masked_lm_labels) % 64) == (0, 0)
        assert 1 <= found.num_tokens - tokens <= batch.max_seqlen
        real = found.slice(0, 12).tensors()
        assert all(torch.equal(real[name], x) for name, x in batch.tensors().items())
        assert found.cu_seqlens[-1] == found.num_tokens
        assert found.position_ids[tokens:].tolist() == list(range(found.num_tokens - tokens))
        assert found.next_sentence_labels[12:].tolist() == [-1]
        assert found.masked_lm_weights.sum() == masked


def test_unpadded_parts_make_up_the_batch(small_folder):
    """Those of ranks have the digest and the counts of the whole, those of passes are it."""
    whole = load(small_folder, 12, unpadded=True)
    for loaded, parts in zip(whole, of_ranks(small_folder, 12, 3, unpadded=True), strict=True):
        assert digest_of(parts) == digest_text(loaded.digest)
        assert counts(*parts) == counts(loaded)
        assert {len(part.batch) for part in parts} == {GLOBAL // 3}
        for passes in (loaded.batch.split(n) for n in (1, 2, 4)):
            assert {len(part) for part in passes} == {GLOBAL // len(passes)}
            together = concatenate_unpadded(passes).tensors()
            assert all(torch.equal(together[k], x) for k, x in loaded.batch.tensors().items())


@pytest.fixture
def store():
    """An empty in-memory folder, removed afterwards."""
    folder = path_of("memory://clozeline-loader-tests")
    yield folder
    folder.rmdir(recursive=True)


@pytest.mark.parametrize(
    "changes", [{}, {"format": "webdataset"}, {"compression": "zstd"}], ids=str
)
def test_a_remote_store_of_any_format_gives_the_same_batches_as_a_disk(
    small_folder, store, changes
):
    rows, config = (13, 20, 0, 7, 17), replace(SMALL, **changes)
    remote = write_data_set(store / "data", train=rows, validation=(9, 14), config=config)
    wanted = load(small_folder, 9)
    found = load(str(remote), 9, prefetch=2)
    assert rows_of(found) == rows_of(wanted)
    assert [loaded.digest for loaded in found] == [loaded.digest for loaded in wanted]
    name = read_manifest(remote).shards[1].name
    (remote / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        Loader(str(remote), batch_size=4, seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("unpadded", [False, True])
def test_batches_reach_the_device_as_they_are(small_folder, unpadded):
    wanted = load(small_folder, 20, unpadded=unpadded)
    found = load(small_folder, 20, unpadded=unpadded, device="cuda", prefetch=2)
    for copied, loaded in zip(found, wanted, strict=True):
        moved = copied.batch.tensors()
        assert {tensor.device.type for tensor in moved.values()} == {"cuda"}
        assert all(torch.equal(moved[k].cpu(), v) for k, v in loaded.batch.tensors().items())
        assert copied.digest == loaded.digest


# --- No padding, damaged shards ------------------------------------------------------------------

NAME, VALIDATION = "train-00001-of-00003.arrow", "validation-00000-of-00001.arrow"


def test_without_padding_the_same_is_learned_and_resumed(small_folder, tmp_path):
    run, padded, again = (tmp_path / name for name in ("run", "padded", "again"))
    train(small_folder, run, model=STILL, unpadded=True)
    train(small_folder, padded, model=STILL, micro_batch_size=4)
    losses = [[x["mlm_loss"] for x in numbers(y) if "mlm_loss" in x] for y in (run, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    go_back(shutil.copytree(run, again), 4)
    train(small_folder, again, model=STILL, resume=True, unpadded=True)
    assert_same_run(again, run)


@pytest.fixture
def shards(tmp_path):
    return write_data_set(tmp_path / "shards", train=(20,), validation=(9,))


@pytest.mark.parametrize("micro", [None, 2])
def test_an_evaluation_takes_no_more_rows_at_once_than_training_does(micro, shards, tmp_path):
    rows = []

    def note(module, inputs, _):
        if isinstance(module, BertForPretraining):
            rows.append(len(inputs[0]))

    with register_module_forward_hook(note):
        train(shards, tmp_path / "run", max_steps=1, micro_batch_size=micro)
    assert set(rows) == {micro or 8}
    assert len(rows) == (1 + 2 if micro is None else 4 + 5)  # a step, the evaluation


def test_a_damaged_validation_shard_costs_nothing_of_what_was_trained(shards, tmp_path):
    path = shards / VALIDATION
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(InputError, match=f"{VALIDATION} is damaged"):
        train(shards, tmp_path / "run", max_steps=3, save_every=0)
    assert read_state(latest_checkpoint(tmp_path / "run")).step == 3


def test_a_shard_that_changed_ends_training_by_name(tmp_path):
    """20 of 40 examples are in a shard with another id than it was written with."""
    harmed = write_data_set(tmp_path / "harmed", train=(13, 20, 7))
    path = harmed / NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 4 * 2] ^= 1  # the low byte of an id, so it still is one
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=f"{NAME} is damaged"):
        train(harmed, tmp_path / "run", max_steps=6)


# --- Masks by a function of the user's program ----------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory):
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


def batches(own, masking, steps, **options):
    loader = Loader(own, batch_size=8, seed=0, masking=masking, **options)
    return [loaded.batch for loaded, _ in zip(loader, range(steps), strict=False)]


def test_the_function_decides_in_every_epoch_which_tokens_are_masked(own):
    manifest, tokenizer = read_manifest(own), load_tokenizer(own / "tokenizer")
    steps = 2 * manifest.num_examples("train") // 8
    for batch in batches(own, second_tokens, steps):
        assert batch.masked_lm_weights.sum(1).eq(1).all()
        assert batch.masked_lm_positions[:, 0].eq(1).all()
        allowed = torch.tensor([tokenizer.mask_id, *tokenizer.replacement_ids.tolist()])
        at_place, labels = batch.input_ids[:, 1], batch.masked_lm_labels[:, 0]
        assert (torch.isin(at_place, allowed) | (at_place == labels)).all()
    masked = torch.cat([batch.input_ids[:, 1] for batch in batches(own, second_tokens, steps)])
    assert 0.6 < masked.eq(tokenizer.mask_id).float().mean() < 0.95  # 80 %


def test_of_more_than_fit_those_with_the_lowest_numbers_are_masked(own):
    [batch] = batches(own, lambda ids, offsets, random: random < 2, 1)
    most = read_manifest(own).config.predictions
    tokens = batch.attention_mask.sum(1) - 2 - batch.token_type_ids.any(1).long()
    assert torch.equal(batch.masked_lm_weights.sum(1), tokens.clamp(max=most).float())


def test_special_tokens_stay(own):
    [batch] = batches(own, lambda ids, offsets, random: ids < 5, 1)
    assert batch.masked_lm_weights.sum() == 0


def test_the_random_numbers_follow_the_row_and_the_epoch_alone(own):
    whole = batches(own, some, 10)
    for rank in range(2):
        part = batches(own, some, 10, rank=rank, world_size=2)
        for all_ranks, mine in zip(whole, part, strict=True):
            assert torch.equal(all_ranks.input_ids[rank::2], mine.input_ids)
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
def test_an_answer_that_cannot_be_used_is_one_line(own, masking, complaint):
    with pytest.raises(InputError, match=complaint):
        batches(own, masking, 1)


def test_a_position_with_another_function_is_refused(own):
    loader = Loader(own, batch_size=8, seed=0, masking=second_tokens)
    state = loader.state_dict()
    with pytest.raises(InputError, match=r"masking '.*second_tokens' there, None now"):
        Loader(own, batch_size=8, seed=0).load_state_dict(state)
    loader.load_state_dict(state)


def test_a_function_without_a_name_is_taken(own):
    loader = Loader(own, batch_size=8, seed=0, masking=partial(some))
    assert loader.state_dict()["masking"] == "functools.partial"
    [batch] = batches(own, partial(some), 1)
    assert torch.equal(batch.input_ids, batches(own, some, 1)[0].input_ids)
