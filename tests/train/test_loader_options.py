"""The loader's options: length bins, unpadded rows, shards of a store, masks of one's own."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import CorruptDataError, InputError
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import latest_checkpoint, list_checkpoints, read_state
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import assign_bins
from clozeline.train.data.unpadded import with_dummy_rows
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import STILL, assert_same_run, go_back, numbers, train
from tests.train.test_batch import concatenate_unpadded
from tests.train.test_loader import (
    GLOBAL,
    ORDER,
    N,
    counts,
    digest_of,
    joined,
    load,
    of_ranks,
    originals,
    rows_of,
)

BINS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """57 examples of up to 64 tokens, in batches of two widths."""
    config = replace(SMALL, max_seq_length=64)
    return write_data_set(tmp_path_factory.mktemp("long"), train=(13, 20, 0, 7, 17), config=config)


def lengths(loaded):
    return loaded.batch.attention_mask.sum(1)


def test_the_batches_of_a_window_have_rows_of_similar_length():
    rows = np.array([9, 4, 7, 3, 4, 8])
    bins = assign_bins(rows, start=6, epoch_rows=100, batch_size=2, key=np.uint64(5))
    assert sorted(bins.tolist()) == [[0, 5], [1, 3], [2, 4]]


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize(
    ("start", "epoch_rows"), [(0, 500), (96, 131), (192, 50), (0, 1), (24, 24), (0, 5)]
)
def test_streams_by_themselves_put_like_lengths_into_the_same_batch(start, epoch_rows, streams):
    """Rows keep slots of their epoch; where a batch lies in one, all streams take the same bin."""
    lengths, size = np.random.default_rng(0).integers(1, 99, 96), 24
    epochs = (start + np.arange(96)) // epoch_rows
    ranks = []
    for stream in range(streams):
        mine = np.arange(stream, 96, streams)
        bins = assign_bins(
            lengths[mine],
            start=start,
            epoch_rows=epoch_rows,
            batch_size=size,
            key=np.uint64(1),
            streams=streams,
            stream=stream,
        )
        assert sorted(bins.ravel().tolist()) == list(range(len(mine)))
        rows = mine[bins]
        slots = np.arange(96).reshape(4, size)[:, stream::streams]
        assert (np.sort(epochs[rows]) == epochs[slots]).all()
        if len(set(epochs)) == 1:
            ranks.append(np.argsort(lengths[rows].mean(axis=1)).tolist())
    assert all(order == ranks[0] for order in ranks)


def widened(loaded):
    """The batch with its ids at the full width, and nothing else that has a width."""
    batch = loaded.batch
    ids = F.pad(batch.input_ids, (0, 64 - batch.input_ids.shape[1]))
    names = ("token_type_ids", "attention_mask")
    return replace(loaded, batch=replace(batch, input_ids=ids, **dict.fromkeys(names, ids)))


def test_with_bins_each_epoch_still_holds_each_example_once(folder):
    everything = set(originals(load(folder, 1, batch_size=N)))
    # A batch that spans two epochs has rows of both, those of the first epoch first.
    rows = originals(map(widened, load(folder, 20, length_bins=BINS)))
    assert all(set(rows[start : start + N]) == everything for start in range(0, 4 * N, N))


def test_batches_of_bins_have_similar_lengths_and_no_extra_width(folder):
    plain, binned = load(folder, 40), load(folder, 40, length_bins=BINS)
    spread = [sum(int(x.max() - x.min()) for x in map(lengths, s)) for s in (plain, binned)]
    assert spread[1] < spread[0]
    for loaded in binned:
        width = loaded.batch.input_ids.shape[1]
        assert width == min(-(-int(lengths(loaded).max()) // 32) * 32, 64)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_with_bins_every_rank_has_rows_of_the_same_bin(folder, world_size):
    options = {"length_bins": BINS}
    whole = load(folder, 20, **options)
    for loaded, parts in zip(whole, of_ranks(folder, 20, world_size, **options), strict=True):
        assert originals([joined(list(map(widened, parts)))]) == originals([widened(loaded)])
        assert digest_of(parts) == digest_text(loaded.digest)


def test_with_bins_a_position_is_the_beginning_of_a_batch(folder):
    loader = Loader(folder, batch_size=GLOBAL, length_bins=BINS, **ORDER)
    with pytest.raises(InputError, match="position 6 is not the beginning of a batch of 12"):
        loader.load_state_dict(loader.state_dict(6))


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


# --- Length bins, no padding, damaged shards ------------------------------------------------------
LONG = replace(STILL, max_position_embeddings=64)
NAME, VALIDATION = "train-00001-of-00003.arrow", "validation-00000-of-00001.arrow"


def of_steps(run, name="mlm_loss"):
    """A number of each step."""
    return [line[name] for line in numbers(run) if name in line]


WITH_BINS = {"model": LONG, "length_bins": 3}


@pytest.fixture(scope="module")
def binned(folder, tmp_path_factory):
    """A run with length bins and without padding, with the same losses as with padding."""
    run = tmp_path_factory.mktemp("binned")
    train(folder, run, unpadded=True, **WITH_BINS)
    return run


def test_without_padding_the_same_is_learned_of_rows_that_bins_chose(folder, binned, tmp_path):
    train(folder, tmp_path / "padded", micro_batch_size=4, **WITH_BINS)
    assert of_steps(binned) == pytest.approx(of_steps(tmp_path / "padded"), rel=1e-5)
    train(folder, tmp_path / "plain", model=LONG, max_steps=2)
    assert of_steps(tmp_path / "plain", "data_digest") != of_steps(binned, "data_digest")[:2]


def test_with_bins_a_run_goes_on_in_the_middle_of_a_window(folder, binned, tmp_path):
    run = go_back(shutil.copytree(binned, tmp_path / "run"), 4)
    train(folder, run, resume=True, unpadded=True, **WITH_BINS)
    assert_same_run(run, binned)


def test_with_bins_nothing_may_change_that_the_order_depends_on(folder, binned, tmp_path):
    run = go_back(shutil.copytree(binned, tmp_path / "run"), 4)
    for changes, reason in (
        ({"length_bins": 3, "batch_size": 4}, "batch_size 8 there, 4 now"),
        ({"length_bins": 2}, "length_bins 3 there, 2 now"),
        ({}, "length_bins 3 there, 0 now; batch_size 8 there, None now"),
    ):
        with pytest.raises(InputError, match=reason):
            train(folder, run, model=LONG, resume=True, unpadded=True, **changes)
    assert len(list_checkpoints(run)) == 1


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
