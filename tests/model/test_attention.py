"""Attention, its kernels on a CPU and positions, against their formulas."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from clozeline.model.attention import Packing, attend
from clozeline.model.config import preset
from clozeline.model.cpu_kernels import dropout
from clozeline.model.heads import BertForPretraining
from clozeline.model.positions import (
    TABLE,
    continued_positions,
    fixed_positions,
    initial_positions,
    neighbour_frequencies,
    rotate,
    rotation_at,
)
from clozeline.train.artifacts.checkpoint import TrainState
from clozeline.train.artifacts.run import read_run, trained_positions
from clozeline.train.data.phases import OTHERS
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.job import load_start
from tests.support.small_models import SMALL as SMALL_MODEL
from tests.support.small_models import numbers
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run

LENGTHS = torch.tensor([7, 1, 4])
MASK = torch.arange(7) < LENGTHS[:, None]
TOLERANCES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)], ids=str
)


def random_qkv(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(3, 7, 3, 2, 8, generator=draw).to(dtype).requires_grad_()


def formula(qkv, row, length):
    """One row without its padding, [length, N, D]."""
    query, key, value = qkv[row, :length].double().unbind(1)
    scores = torch.einsum("qnd,knd->nqk", query, key) / 8**0.5
    return torch.einsum("nqk,knd->qnd", scores.softmax(-1), value)


def packing():
    starts = F.pad(LENGTHS.cumsum(0), (1, 0)).int()
    return Packing(MASK.nonzero()[:, 1], starts, max_seqlen=9)


@pytest.mark.parametrize("mask", [MASK, None], ids=["padding", "full"])
@TOLERANCES
def test_with_a_window_only_near_tokens_count(dtype, tolerance, mask):
    """Changing a token changes the outputs within the window of it, and no others."""
    qkv = random_qkv(dtype).detach()
    changed = qkv.clone()
    changed[:, 3] += 1
    near, other = (attend(x, mask, dropout_prob=0.0, window=2) for x in (qkv, changed))
    assert near.isfinite().all()
    differs = (near != other).flatten(2).any(-1)  # [B, S]
    assert differs[0].tolist() == [False, True, True, True, True, True, False]
    if mask is not None:
        assert not differs[1:].any(0)[0]
        wanted = [formula(qkv[:, i : i + 3], 0, 3)[1] for i in range(5)]  # the middle of three
        found = attend(qkv, mask, dropout_prob=0.0, window=1)[0, 1:6].double()
        torch.testing.assert_close(found, torch.stack(wanted), atol=tolerance, rtol=tolerance)


PIECES = MASK * torch.tensor([1, 1, 2, 2, 2, 3, 3])


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("rows", [None, MASK, PIECES], ids=["full", "padded", "packed"])
@TOLERANCES
def test_the_attention_of_some_tokens_is_theirs_of_all(dtype, tolerance, rows, window):
    qkv, at = random_qkv(dtype), torch.tensor([[6, 0, 3], [0, 0, 0], [2, 3, 0]])
    every = attend(qkv, rows, dropout_prob=0.0, window=window)
    every = torch.stack([row[places] for row, places in zip(every, at, strict=True)])
    (wanted,) = torch.autograd.grad(every.square().sum(), qkv)
    some = attend(qkv, rows, dropout_prob=0.0, window=window, positions=at)
    assert some.shape == (3, 3, 2, 8)
    torch.testing.assert_close(some, every, atol=tolerance, rtol=tolerance)
    (gradient,) = torch.autograd.grad(some.square().sum(), qkv)
    torch.testing.assert_close(gradient, wanted, atol=10 * tolerance, rtol=10 * tolerance)


def test_dropout_acts_on_the_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    qkv = random_qkv().detach()
    still = attend(qkv, MASK, dropout_prob=0.0)
    many = attend(qkv.repeat(4000, 1, 1, 1, 1), MASK.repeat(4000, 1), dropout_prob=0.2)
    drawn = many.view(4000, *still.shape)
    assert not torch.equal(drawn[0], drawn[1])
    torch.testing.assert_close(drawn.mean(0)[MASK], still[MASK], atol=0.05, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [7, 9])
def test_the_kernel_for_unpadded_rows_agrees_with_padding(length):
    qkv = random_qkv().detach()
    wanted = attend(qkv, MASK, dropout_prob=0.0)[MASK]
    rows = Packing(packing().position_ids.cuda(), packing().cu_seqlens.cuda(), length)
    on_gpu = qkv[MASK].to("cuda", torch.bfloat16)
    found = attend(on_gpu, rows, dropout_prob=0.0).float().cpu()
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
    with pytest.raises(ValueError, match="no dropout on CUDA; set it to 0"):
        attend(on_gpu, rows, dropout_prob=0.1)


# --- Dropout on a CPU


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_elements_are_dropped_with_probability_p_and_the_rest_is_scaled_up(p, dtype):
    torch.manual_seed(0)
    dropped = dropout(ones(1000, 999, dtype=dtype), p).float()
    assert (dropped == 0).float().mean().item() == pytest.approx(p, abs=0.002)
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), atol=0, rtol=5e-3)


def test_the_gradient_has_the_same_mask_and_scale():
    x = ones(100, 100)
    dropped = dropout(x, 0.25)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, dropped.detach())


# --- Sinusoids, heads that start by attending to neighbours, and rotary positions -----------------
NANO = preset("nano", **SMALL_MODEL)


def test_sinusoids_have_the_scale_of_new_word_embeddings():
    fixed = fixed_positions(replace(NANO, positions="sinusoids"), 32)
    assert fixed.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-4)
    learned = BertForPretraining(replace(NANO, positions="learned-from-sinusoids"))
    assert torch.equal(learned.encoder.embeddings.position_embeddings.weight, fixed)


def farthest(layer, positions):
    """How far from each token each head attends most, [N, S], from positions alone."""
    x = torch.nn.functional.layer_norm(positions, (256,))
    query, key, _ = layer.attention.qkv(x).unflatten(-1, (3, 4, 64)).permute(1, 2, 0, 3)
    return (query @ key.transpose(-1, -2)).argmax(-1) - torch.arange(len(x))


def test_heads_that_start_from_neighbours_attend_ahead_and_back_and_the_others_do_not():
    """The first two of a layer, beyond the old positions too."""
    config = preset("nano", vocab_size=200)
    encoder = BertForPretraining(config, seed=0).encoder
    table = encoder.embeddings.position_embeddings.weight.detach()
    longer = continued_positions(table, replace(config, max_position_embeddings=256))
    for layer, positions in [(encoder.layers[0], longer), *((x, table) for x in encoder.layers)]:
        found = farthest(layer, positions)
        hits = [(found == offset).float().mean(1).tolist() for offset in (1, -1)]
        assert min(hits[0][0], hits[1][1]) > 0.9
        assert max(hits[0][1:] + hits[1][2:]) < 0.3


def test_a_longer_table_keeps_its_rows_and_continues_its_waves():
    """Each column is a wave of its own frequency, whatever training made of its phase and mean."""
    nano = preset("nano", hidden_size=32)
    draws = numbers(0)
    sizes, phases, means = (torch.rand(32, generator=draws, dtype=torch.float64) for _ in range(3))
    frequencies = neighbour_frequencies(nano).double().repeat_interleave(2)
    position = torch.arange(256)[:, None]
    waves = sizes * (position * frequencies + phases).sin() + means
    table = waves[:64].float()
    longer = continued_positions(table, replace(nano, max_position_embeddings=256))
    assert torch.equal(longer[:64], table)
    torch.testing.assert_close(longer, waves.float(), atol=1e-4, rtol=0)
    for between in (65, 100, 128):
        once = continued_positions(table, replace(nano, max_position_embeddings=between))
        twice = continued_positions(once, replace(nano, max_position_embeddings=256))
        assert torch.equal(twice[:between], once)
        torch.testing.assert_close(twice, waves.float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("trained", [16, 64, 128])
def test_a_table_of_which_only_the_first_rows_are_trained_gets_its_own_waves_back(trained):
    config = replace(preset("nano"), max_position_embeddings=256)
    whole = initial_positions(config)
    found = continued_positions(whole[:trained], config)
    torch.testing.assert_close(found, whole, atol=1e-3, rtol=0)


@pytest.mark.parametrize("positions", ["learned", "learned-from-sinusoids"])
def test_other_tables_are_repeated(positions):
    table = torch.arange(12.0).view(6, 2)
    config = replace(NANO, positions=positions, max_position_embeddings=15)
    assert torch.equal(continued_positions(table, config), torch.cat([table, table, table[:3]]))


def test_half_precision_is_rounded_once_and_its_angles_never():
    """bfloat16 cannot represent 401: positions 400 and 401 would be the same."""
    qkv = torch.randn(2, 3, 2, 8, generator=numbers(0)).bfloat16()  # [S, 3, N, D]
    positions = torch.tensor([400, 401])
    exact = rotate(qkv.float(), rotation_at(positions, 8, 1e4))
    with torch.autocast("cpu", torch.bfloat16):
        rotated = rotate(qkv, rotation_at(positions, 8, 1e4))
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated, exact.bfloat16())


def test_a_classifier_of_longer_texts_continues_the_positions_that_were_trained(tmp_path):
    tokenizer = tokenizer_of("good", "bad")
    model = BertForPretraining(one_layer(tokenizer, positions=16), seed=1)
    run = write_small_run(tmp_path / "run", model, tokenizer, max_seq_length=12)
    drawn = model.state_dict()[TABLE]
    for length in (None, 8, 12):
        start = load_start(run, FinetuneConfig(max_seq_length=length))
        assert start.trained_positions is None
        assert start.continued_weights[TABLE].equal(drawn)
    start = load_start(run, FinetuneConfig(max_seq_length=13))
    assert start.trained_positions == 12
    repeated = torch.cat([drawn[:12], drawn[:4]])  # as plain learned positions are
    assert start.continued_weights[TABLE].equal(repeated)
    assert start.weights[TABLE].equal(drawn)


def test_only_the_data_sets_that_a_run_has_read_train_its_positions(tmp_path):
    tokenizer = tokenizer_of("good", "bad")
    model = BertForPretraining(one_layer(tokenizer, positions=16), seed=1)
    config = read_run(write_small_run(tmp_path, model, tokenizer, max_seq_length=16))
    short = replace(config.phases[0], dataset_digest="1" * 64, max_seq_length=8)
    config = replace(config, phases=(short, *config.phases))
    main = {"dataset_digest": "0" * 64, "next_position": 0}
    other = {"dataset_digest": "1" * 64, "next_position": 40}
    state = TrainState(step=5, loader=main | {OTHERS: [other]})
    assert trained_positions(config, state) == 8
    assert trained_positions(replace(config, started_from="0" * 64), state) is None
    later = TrainState(step=9, loader=main | {"next_position": 8, OTHERS: [other]})
    assert trained_positions(config, later) == 16
    for before, found in ((6, 8), (8, 8), (12, 12)):
        started = replace(config, started_from="0" * 64, trained_before=before)
        assert trained_positions(started, state) == found
        assert trained_positions(started, TrainState(step=0)) == before
    computed = replace(config.model, positions="sinusoids")
    assert trained_positions(replace(config, model=computed), state) is None
