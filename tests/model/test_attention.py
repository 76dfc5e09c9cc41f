"""The attention kernels against each other and against the formula."""

import pytest
import torch
import torch.nn.functional as F

from clozeline.model.attention import Packing, attend
from clozeline.model.cpu_kernels import Dropout, dropout

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


@TOLERANCES
def test_tokens_attend_to_the_real_tokens_of_their_row(dtype, tolerance):
    qkv = random_qkv(dtype)
    attended = attend(qkv, MASK, dropout_prob=0.0)
    assert attended.dtype == dtype
    for row, length in enumerate(LENGTHS):
        wanted = formula(qkv, row, length)
        found = attended[row, :length].double()
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", [None, 2])
def test_unpadded_rows_give_the_outputs_and_gradients_of_padded_ones(window):
    padded, qkv = random_qkv(), random_qkv()
    wanted = attend(padded, MASK, dropout_prob=0.0, window=window)[MASK]
    found = attend(qkv[MASK], packing(), dropout_prob=0.0, window=window)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    for attended in (wanted, found):
        (attended * weights).sum().backward()
    torch.testing.assert_close(qkv.grad, padded.grad, atol=1e-6, rtol=1e-5)


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


def test_a_window_as_wide_as_the_rows_is_none():
    qkv = random_qkv()
    wide, none = (attend(qkv, None, dropout_prob=0.0, window=window) for window in (6, None))
    assert torch.equal(wide, none)


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


# CPU kernels: dropout's distribution, gradient and seed; attention and cross-entropy vs. torch


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


def test_neighbouring_elements_are_dropped_independently():
    """Four elements share one random draw."""
    torch.manual_seed(0)
    kept = (dropout(ones(250_000, 4), 0.5) > 0).float()
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max() < 0.01
    assert (kept.mean(0) - 0.5).abs().max() < 0.005


@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (2, 3, 4, 5), (0, 3)])
def test_any_shape_works(shape):
    assert dropout(ones(*shape), 0.5).shape == shape
    assert dropout(ones(*shape), 0.999999).isfinite().all()  # as good as 1


def test_the_gradient_has_the_same_mask_and_scale():
    x = ones(100, 100)
    dropped = dropout(x, 0.25)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, dropped.detach())


def test_it_depends_on_torchs_seed():
    def draw(seed):
        torch.manual_seed(seed)
        return dropout(ones(64, 64), 0.5), dropout(ones(64, 64), 0.5)

    first, second = draw(1)
    assert torch.equal(first, draw(1)[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, draw(2)[0])


@pytest.mark.parametrize("module", [Dropout(0.5).eval(), Dropout(0.0), Dropout(1e-6)])
def test_without_training_or_probability_nothing_is_drawn(module):
    before, x = torch.get_rng_state(), ones(8, 8)
    assert module(x) is x
    assert torch.equal(torch.get_rng_state(), before)
