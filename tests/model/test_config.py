"""The model's config: what it refuses, what it keeps, what the presets are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.config import PRESETS, BertConfig, preset


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
    assert BertConfig.from_dict(stored) == PRESETS[name]


def test_unknown_fields_are_refused_by_name():
    with pytest.raises(ValueError, match=r"model setting: depth, width\. Known: vocab_size"):
        BertConfig.from_dict({"width": 1, "hidden_size": 128, "depth": 2})
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


def test_a_short_name_finds_the_preset_of_google():
    assert preset("base") == preset("bert-base") == BertConfig()


def test_a_preset_takes_changes_and_stays_as_it_was():
    changed = preset("nano", vocab_size=8192, max_position_embeddings=128)
    assert (changed.vocab_size, changed.max_position_embeddings) == (8192, 128)
    assert changed.norm_position == "pre"
    assert PRESETS["nano"].vocab_size == 30_522


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ValueError, match=f"'huge'; known: {', '.join(PRESETS)}"):
        preset("huge")
