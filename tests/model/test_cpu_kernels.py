"""CPU kernels: dropout's distribution, gradient and seed; attention and cross-entropy vs. torch."""

import pytest
import torch

from clozeline.model.cpu_kernels import Dropout, dropout


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
