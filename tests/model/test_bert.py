"""Properties of the encoder; test_huggingface.py compares it with `transformers`."""

from dataclasses import replace

import pytest
import torch

from clozeline.model.bert import BertEncoder
from clozeline.model.config import PRESETS, preset
from clozeline.model.heads import BertForPretraining
from tests.support.small_models import (
    SMALL,
    answers,
    batch_of,
    gradients,
    inputs_of,
    narrow,
    packed,
    shaken,
)

TINY = preset("tiny", **SMALL)
NANO = preset("nano", **SMALL)
# Post-norm and pre-norm; learned, sinusoidal and rotary positions.
KINDS = pytest.mark.parametrize("name", ["bert-tiny", "nano", "bert-pytorch-base", "modern-nano"])


def assert_close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@KINDS
def test_without_padding_no_mask_is_the_full_mask(name):
    model, batch = shaken(narrow(name)), inputs_of()
    mask = batch.pop("attention_mask")
    full, none = (model.encoder(**batch, attention_mask=x) for x in (torch.ones_like(mask), None))
    assert_close(full, none)


@KINDS
def test_a_sequence_longer_than_the_positions_is_refused(name):
    encoder = BertEncoder(narrow(name))
    ids = torch.zeros(1, 33, dtype=torch.long)
    with pytest.raises(ValueError, match="33 tokens, but the model has 32 positions"):
        encoder(ids, ids, None)


@pytest.mark.parametrize("is_padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("name", PRESETS)
def test_states_at_positions_are_those_of_all_tokens(name, is_padded):
    model = shaken(narrow(name))
    batch = batch_of() if is_padded else packed(batch_of(), answers()[1])
    positions = batch.pop("masked_lm_positions")

    everywhere, first_of_all = model.encoder(**batch)
    if is_padded:
        everywhere = torch.stack([row[at] for row, at in zip(everywhere, positions, strict=True)])
    else:
        everywhere = everywhere[positions]
    (everywhere.square().sum() + first_of_all.sum()).backward()
    wanted = gradients(model)

    model.zero_grad()
    found, first = model.encoder(**batch, positions=positions)
    (found.square().sum() + first.sum()).backward()
    assert_close(found, everywhere)
    assert_close(first, first_of_all)
    # Each row of the segment table adds up all tokens, in an order that depends on the processor.
    torch.testing.assert_close(gradients(model), wanted, atol=5e-4, rtol=5e-4)


def test_the_last_layer_ends_with_the_tokens_that_are_asked_for():
    model, batch = shaken(NANO), batch_of()
    rows = []
    for layer in model.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda *call: rows.append(call[-1].shape[:-1]))
    model(**batch)
    assert rows == [(4, 24), (4, 1 + 3)]  # [CLS], and three masks a row


def test_dropout_acts_in_training_only():
    model, batch = shaken(replace(TINY, hidden_dropout_prob=0.1)).eval(), inputs_of()
    assert torch.equal(model.encoder(**batch)[0], model.encoder(**batch)[0])
    model.train()
    assert not torch.equal(model.encoder(**batch)[0], model.encoder(**batch)[0])


def test_initial_weights_depend_on_the_seed_alone():
    first = BertForPretraining(NANO, seed=5).state_dict()
    torch.rand(3)
    second, other = (BertForPretraining(NANO, seed=seed).state_dict() for seed in (5, 6))
    assert all(torch.equal(first[name], second[name]) for name in first)
    drawn = [name for name in first if first[name].std() > 0 and "position" not in name]
    assert len(drawn) == 11  # two tables, four matrices in each of two layers, a head
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_normal_weights_are_truncated_at_two_standard_deviations():
    model = BertForPretraining(replace(TINY, initializer_range=0.1))
    matrix = model.encoder.layers[0].get_parameter("feed_forward.up.weight")
    assert 0.19 < matrix.abs().max().item() <= 0.2
    assert matrix.std().item() == pytest.approx(0.088, rel=0.02)  # 0.1 after truncation
    assert not model.encoder.layers[0].get_parameter("feed_forward.up.bias").any()


@pytest.mark.parametrize("gated", [False, True])
def test_xavier_treats_packed_matrices_as_several(gated):
    """Queries, keys and values; a gate and the projection that it multiplies."""
    config = replace(NANO, init="xavier", positions="learned", gated=gated)
    layer = BertForPretraining(config).encoder.layers[0]
    qkv, up = (layer.get_parameter(f"{x}.weight") for x in ("attention.qkv", "feed_forward.up"))
    assert up.shape == (1024 * (1 + gated), 256)
    for block, widths in [*((x, 512) for x in qkv.chunk(3)), *((x, 1280) for x in up.split(1024))]:
        assert block.abs().max().item() == pytest.approx((6 / widths) ** 0.5, rel=1e-3)


def test_normal_residual_scales_down_the_last_matrix_of_each_sublayer():
    config = replace(TINY, init="normal-residual", num_hidden_layers=8)
    layer = BertForPretraining(config).encoder.layers[7]
    spread = {name: p.std().item() for name, p in layer.named_parameters() if p.dim() == 2}
    plain = 0.02 * 0.88  # after truncation
    assert spread == {
        "attention.qkv.weight": pytest.approx(plain, rel=0.02),
        "attention.output.weight": pytest.approx(plain / 4, rel=0.02),
        "feed_forward.up.weight": pytest.approx(plain, rel=0.02),
        "feed_forward.down.weight": pytest.approx(plain / 4, rel=0.02),
    }
