"""ModernBERT folders, written and read, compared with `transformers`.

The model is small, but has what matters: three layers, of which the second and third attend to 4
tokens on either side, with another rotary base.
"""

import json

import pytest
import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining, masked_lm_loss_sum
from clozeline.model.huggingface.config import read_huggingface_config
from clozeline.model.huggingface.convert import load_huggingface, save_huggingface
from tests.support.small_huggingface import MODERN, change, save_folder
from tests.support.small_models import VOCAB, answers, batch_of, inputs_of, packed, shaken
from tests.test_huggingface import (
    assert_close,
    assert_same_gradients,
    in_transformers,
)

pytestmark = pytest.mark.usefixtures("quiet")

#: config.json as published with ModernBERT-base, in its size and form, but with our vocabulary.
PUBLISHED = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "position_embedding_type": "absolute",
    "reference_compile": None,
    "tie_word_embeddings": True,
    "vocab_size": 50368,
}


@pytest.mark.parametrize("is_padded", [True, False], ids=["padded", "unpadded"])
def test_pretraining_gives_the_outputs_and_gradients_of_transformers(is_padded, tmp_path):
    """The next-sentence head takes no part: `transformers` has none."""
    model, batch = shaken(MODERN).eval(), batch_of()
    reference = in_transformers(save_folder(tmp_path / "saved", model), "ModernBertForMaskedLM")
    labels, weights, _ = answers()
    positions, mask = batch["masked_lm_positions"], batch["attention_mask"]
    dense = torch.full(mask.shape, -100)
    rows, slots = weights.nonzero(as_tuple=True)
    dense[rows, positions[rows, slots]] = labels[rows, slots]
    read = {"input_ids": batch["input_ids"], "attention_mask": mask}
    expected, states = reference(**read, labels=dense), reference.model(**read).last_hidden_state
    wanted = expected.logits[torch.arange(4)[:, None], positions]
    if is_padded:
        hidden = model.encoder(batch["input_ids"], batch["token_type_ids"], mask)[0]
        assert hidden.isfinite().all()
        hidden, (logits, _) = hidden[mask], model(**batch)
    else:
        inputs, used = packed(batch, weights), weights > 0
        ids, types, packing = (inputs[k] for k in ("input_ids", "token_type_ids", "packing"))
        hidden, logits = model.encoder(ids, types, None, packing)[0], model(**inputs)[0]
        wanted, labels, weights = wanted[used], labels[used], weights[used]
    assert_close(hidden, states[mask])
    assert_close(logits[..., :VOCAB], wanted)
    loss = masked_lm_loss_sum(logits, labels, weights) / weights.sum()
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, reference)


def test_a_model_initialized_by_transformers_gives_the_same_logits_here(tmp_path):
    import transformers

    save_huggingface(tmp_path, MODERN, BertForPretraining(MODERN).state_dict())
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    reference = transformers.ModernBertForMaskedLM(config).eval()
    reference.save_pretrained(tmp_path / "reference")
    model, found = BertForPretraining(MODERN).eval(), load_huggingface(tmp_path / "reference")
    model.load_state_dict(model.state_dict() | found.weights)
    ids = inputs_of()["input_ids"][:1]
    logits, _ = model(ids, torch.zeros_like(ids), None, torch.arange(24)[None])
    assert_close(logits[..., :VOCAB], reference(input_ids=ids).logits)


def test_a_local_base_of_null_is_the_global_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | {"local_rope_theta": None}))
    model = read_huggingface_config(tmp_path).model
    assert model.local_rope_theta == model.global_rope_theta == 160_000


def test_the_published_form_of_the_config_is_read(tmp_path):
    """The published model: 22 layers, a base of 160,000 in every third, 8,192 tokens."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    found = read_huggingface_config(tmp_path)
    wanted = preset(
        "modern-base",
        vocab_size=50368,
        num_hidden_layers=22,
        intermediate_size=1152,
        max_position_embeddings=8192,
        global_rope_theta=160_000.0,
    )
    assert (found.model, found.pooling) == (wanted, "mean")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("norm_bias", True, r"norm_bias is True; only plain ModernBERT is supported \(False\)"),
        ("classifier_activation", "relu", "classifier_activation is 'relu'; it must be hidden"),
        ("classifier_pooling", "max", "classifier_pooling is 'max'; known: cls, mean"),
        ("layer_types", ["sliding_attention"] * 3, "the global ones"),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn"}}, "only default is known"),
        ("hidden_activation", "silu", "hidden_activation is 'silu'; supported: gelu"),
        ("architectures", ["BertModel"], "model_type 'modernbert', architecture 'BertModel'"),
    ],
)
def test_other_forms_are_refused_by_name(setting, value, message, tmp_path):
    save_huggingface(tmp_path, MODERN, BertForPretraining(MODERN).state_dict())
    change(tmp_path, **{setting: value})
    with pytest.raises(ValueError, match=message):
        load_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("bias", True), ("pooler", True), ("norm_position", "pre")]
)
def test_a_model_without_segments_that_is_no_modernbert_is_refused(field, value, tmp_path):
    with pytest.raises(ValueError, match=f"the ModernBERT .* has no {field} {value!r}"):
        save_huggingface(tmp_path, preset("modern-mini", **{field: value}), {})
