"""The encoder and its config; test_huggingface.py compares the encoder with `transformers`."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.bert import BertEncoder
from clozeline.model.config import PRESETS, BertConfig, preset
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


# --- The model's config: what it refuses, what it keeps, what the presets are ---------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0; give a whole number of at least 1"),
        ({"hidden_size": 128.0}, r"hidden_size is 128.0; give a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 7}, "hidden_size 768 is not divisible by num_attention_heads 7"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0; give 0 or more, below 1"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob is -0.1"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0; give a number above 0"),
        ({"initializer_range": float("nan")}, "initializer_range is nan"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'; give a number"),
        ({"norm_position": "middle"}, "norm_position is 'middle'; known: post, pre"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'; known: gelu, gelu-tanh, relu"),
        ({"positions": "alibi"}, "positions is 'alibi'; known: learned, .*sinusoids, rotary"),
        ({"init": "zeros"}, "init is 'zeros'; known: normal, normal-residual, xavier"),
        ({"pooler": 1}, "pooler is 1; give true or false"),
        ({"gated": "yes"}, "gated is 'yes'; give true or false"),
        ({"bias": None}, "bias is None; give true or false"),
        ({"padding_segment": True}, "padding_segment is on, but type_vocab_size 2 has no room"),
        ({"type_vocab_size": -1}, "type_vocab_size is -1; give a whole number of at least 0"),
        ({"local_attention": 7}, "local_attention is 7; give an even number"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0; give a whole"),
        ({"global_rope_theta": 0}, "global_rope_theta is 0; give a number above 0"),
        ({"final_norm": True}, "final_norm is on, but norm_position 'post'"),
        ({"norm_position": "pre-except-first", "embedding_norm": False},
         "'pre-except-first' needs embedding_norm"),
        ({"classifier_transform": True, "mlm_transform": False},
         "classifier_transform is on, but mlm_transform"),
        ({"hidden_size": 27, "num_attention_heads": 3, "positions": "learned-from-sinusoids"},
         r"the width 27 is odd\. Change hidden_size or num_attention_heads"),
        ({"hidden_size": 18, "num_attention_heads": 2, "positions": "rotary"},
         r"positions 'rotary' need pairs .* the width 9 is odd"),
    ],
)  # fmt: skip
def test_values_that_make_no_model_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        BertConfig(**fields)


@given(st.integers(1, 300_000))
def test_the_padded_vocabulary_is_the_next_multiple_of_64(vocab_size):
    padded = BertConfig(vocab_size=vocab_size).padded_vocab_size
    assert padded % 64 == 0
    assert vocab_size <= padded < vocab_size + 64


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_json(name):
    stored = json.loads(json.dumps(PRESETS[name].to_dict()))
    assert BertConfig(**stored) == PRESETS[name]


def test_unknown_fields_are_refused_by_name():
    with pytest.raises(ValueError, match=r"model setting: depth, width\. Known: vocab_size"):
        BertConfig(**{"width": 1, "hidden_size": 128, "depth": 2})
    with pytest.raises(ValueError, match="unknown model setting: hiden_size"):
        preset("nano", hiden_size=128)


#: Layers, hidden size, heads, feed-forward size, dropout, places.
SIZES = {
    "nano": (2, 256, 4, 1024, 0.0, 64),
    "micro": (4, 256, 4, 1024, 0.0, 64),
    "bert-tiny": (2, 128, 2, 512, 0.1, 512),
    "bert-mini": (4, 256, 4, 1024, 0.1, 512),
    "bert-small": (4, 512, 8, 2048, 0.1, 512),
    "bert-medium": (8, 512, 8, 2048, 0.1, 512),
    "bert-base": (12, 768, 12, 3072, 0.1, 512),
    "bert-large": (24, 1024, 16, 4096, 0.1, 512),
    "bert-pytorch-base": (12, 768, 12, 3072, 0.1, 512),
    "bert-pytorch-large": (24, 1024, 16, 4096, 0.1, 512),
    "d2l": (2, 128, 2, 256, 0.2, 1000),
    "modern-nano": (6, 320, 5, 896, 0.0, 512),  # 8/3 hidden, rounded up to a multiple of 64
    "modern-mini": (4, 256, 4, 704, 0.0, 512),
    "modern-small": (4, 512, 8, 1408, 0.0, 512),
    "modern-medium": (12, 512, 8, 1408, 0.0, 512),
    "modern-base": (22, 768, 12, 1152, 0.0, 512),  # ModernBERT-base's
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_sizes(name):
    config = preset(name)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob
    assert SIZES[name] == (
        config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
        config.intermediate_size, config.hidden_dropout_prob, config.max_position_embeddings,
    )  # fmt: skip


def test_a_preset_has_a_short_name_takes_changes_and_stays_as_it_was():
    assert preset("base") == preset("bert-base") == BertConfig()
    changed = preset("nano", vocab_size=8192, max_position_embeddings=128)
    assert (changed.vocab_size, changed.max_position_embeddings) == (8192, 128)
    assert (changed.norm_position, PRESETS["nano"].vocab_size) == ("pre", 30_522)
    with pytest.raises(ValueError, match=f"'huge'; known: {', '.join(PRESETS)}"):
        preset("huge")
