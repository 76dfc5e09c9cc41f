"""Hugging Face folders of BERT and ModernBERT, written and read, compared with `transformers`.

The ModernBERT is small, but has what matters: three layers, of which the second and third attend to
4 tokens on either side, with another rotary base.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._device import _device_constructors

from clozeline.model.config import PRESETS, preset
from clozeline.model.heads import (
    BertForClassification,
    BertForPretraining,
    masked_lm_loss_sum,
    next_sentence_loss_sum,
)
from clozeline.model.huggingface.config import (
    SHARED,
    huggingface_config,
    model_type_of,
    read_huggingface_config,
)
from clozeline.model.huggingface.convert import FAMILIES, load_huggingface, save_huggingface
from clozeline.model.positions import initial_positions
from tests.support.small_huggingface import MODERN, SMALL, change, save_folder
from tests.support.small_models import VOCAB, answers, batch_of, inputs_of, packed, shake, shaken

pytestmark = pytest.mark.usefixtures("quiet")


def in_transformers(folder, architecture, caplog):
    """The folder loaded by `transformers` without a warning, and nothing missing or unexpected."""
    import transformers

    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
    return model.eval()


def assert_close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def assert_same_gradients(model, reference):
    """Of every weight of the reference that has one."""
    found = {}
    family = FAMILIES[model_type_of(model.config)]
    for name, parameter in model.named_parameters():
        names = family.of(name)
        gradient = parameter.grad
        if not names:
            continue
        assert gradient is not None
        if name.endswith("word_embeddings.weight"):
            assert not gradient[VOCAB:].any()
            gradient = gradient[:VOCAB]
        found |= dict(zip(names, gradient.chunk(len(names)), strict=True))
    for name, parameter in reference.named_parameters():
        assert_close(found.pop(name), parameter.grad)
    assert not found


def test_positions_are_on_the_default_device_whatever_transformers_loaded_first(tmp_path, caplog):
    """It replaces `torch.linspace` for that time, and torch may remember the replacement."""
    _device_constructors.cache_clear()
    in_transformers(save_folder(tmp_path / "saved", shaken(SMALL)), "BertForPreTraining", caplog)
    with torch.device("meta"):
        found = initial_positions(preset("nano"))
    _device_constructors.cache_clear()
    assert found.is_meta


@pytest.mark.parametrize("is_padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize(
    "config",
    [
        replace(PRESETS["bert-tiny"], vocab_size=VOCAB, max_position_embeddings=24),
        replace(SMALL, hidden_act="relu", type_vocab_size=3),
        replace(SMALL, hidden_act="gelu-tanh"),
        MODERN,
        replace(MODERN, num_hidden_layers=PRESETS["modern-medium"].num_hidden_layers),
    ],
    ids=["gelu", "relu", "gelu-tanh", "modern", "as deep as modern-medium"],
)
def test_pretraining_gives_the_outputs_and_gradients_of_transformers(
    config, is_padded, tmp_path, caplog
):
    """The next-sentence head of ModernBERT takes no part: `transformers` has none."""
    is_modern = not config.type_vocab_size
    architecture = "ModernBertForMaskedLM" if is_modern else "BertForPreTraining"
    model, batch = shaken(config).eval(), batch_of()
    saved = save_folder(tmp_path / "saved", model)
    reference = in_transformers(saved, architecture, caplog)
    labels, weights, follows = answers()
    positions, mask = batch["masked_lm_positions"], batch["attention_mask"]
    dense = torch.full(mask.shape, -100)
    rows, slots = weights.nonzero(as_tuple=True)
    dense[rows, positions[rows, slots]] = labels[rows, slots]
    read = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if not is_modern:
        read["token_type_ids"] = batch["token_type_ids"]
    pairs = {} if is_modern else {"next_sentence_label": follows}
    expected, states = reference(**read, **pairs, labels=dense), reference.base_model(**read)
    wanted = expected["logits" if is_modern else "prediction_logits"]
    wanted = wanted[torch.arange(4)[:, None], positions]
    if not is_padded:
        used, batch = weights > 0, packed(batch, weights)
        wanted, labels, weights = wanted[used], labels[used], weights[used]
    mlm_logits, nsp_logits = model(**batch)
    del batch["masked_lm_positions"]
    hidden, pooled = model.encoder(**batch)
    loss = masked_lm_loss_sum(mlm_logits, labels, weights) / weights.sum()
    if not is_modern:
        loss = loss + next_sentence_loss_sum(nsp_logits, follows) / len(follows)
        assert_close(pooled, states.pooler_output)
        assert_close(nsp_logits, expected.seq_relationship_logits)
    assert hidden.isfinite().all()
    assert_close(hidden[mask] if is_padded else hidden, states.last_hidden_state[mask])
    assert_close(mlm_logits[..., :VOCAB], wanted)
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, reference)


@pytest.mark.parametrize(
    ("config", "labels", "pooling"),
    [
        (SMALL, ("bad", "good"), "cls"),
        (SMALL, ("1", "2", "3", "4", "5"), "cls"),
        (MODERN, ("bad", "fair", "good"), "cls"),
        (MODERN, ("bad", "fair", "good"), "mean"),
    ],
    ids=["2", "5", "modern, cls", "modern, mean"],
)
def test_classification_gives_the_outputs_and_gradients_of_transformers(
    config, labels, pooling, tmp_path, caplog
):
    model = shake(BertForClassification(config, len(labels), pooling=pooling)).eval()
    batch = inputs_of()
    architecture = f"{'Modern' * (config is MODERN)}BertForSequenceClassification"
    options = {"architecture": architecture, "labels": labels, "pooling": pooling}
    folder = save_folder(tmp_path / "saved", model, **options)
    reference, classes = in_transformers(folder, architecture, caplog), torch.arange(4)
    classes %= len(labels)
    read = {k: v for k, v in batch.items() if config is SMALL or k != "token_type_ids"}
    expected, logits = reference(**read, labels=classes), model(**batch)
    loss = torch.nn.functional.cross_entropy(logits, classes)
    assert_close(logits, expected.logits)
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, reference)
    assert reference.config.id2label == dict(enumerate(labels))
    assert reference.config.label2id == {label: i for i, label in enumerate(labels)}
    found = load_huggingface(folder)
    assert (found.config.labels, found.config.pooling) == (labels, pooling)
    assert config is SMALL or found.absent == ("mlm_head", "nsp_head")
    assert_holds(found.weights, model)


def assert_holds(weights, model):
    """Every weight that both have is the same, bit for bit."""
    wanted = model.state_dict()
    assert weights.keys() & wanted.keys()
    for name in weights.keys() & wanted.keys():
        assert torch.equal(weights[name], wanted[name]), name


@pytest.mark.parametrize(
    ("config", "architecture", "absent"),
    [
        (SMALL, "BertForPreTraining", ()),
        (SMALL, "BertForMaskedLM", ("pooler", "nsp_head")),
        (SMALL, "BertModel", ("mlm_head", "nsp_head")),
        (MODERN, "ModernBertForMaskedLM", ("nsp_head",)),
        (MODERN, "ModernBertModel", ("mlm_head", "nsp_head")),
    ],
)
def test_models_saved_by_transformers_load_bit_for_bit(
    config, architecture, absent, tmp_path, caplog
):
    """ModernBERT's config.json has another form then: a kind and a base for each layer."""
    model = shaken(config).eval()
    saved = save_folder(tmp_path / "saved", model, architecture=architecture)
    in_transformers(saved, architecture, caplog).save_pretrained(tmp_path / "reference")
    found = load_huggingface(tmp_path / "reference")
    assert found.config.model == config
    assert (found.config.architecture, found.absent) == (architecture, absent)
    assert_holds(found.weights, model)
    names = set(model.state_dict()) - set(found.weights)
    assert {name.split(".")[0] for name in names} <= {"mlm_head", "nsp_head", "encoder"}
    assert ("encoder.pooler.weight" in names) == ("pooler" in absent)


def test_every_field_is_converted_or_refused_by_name():
    others = {"hidden_act": "relu", "norm_position": "pre", "positions": "sinusoids"}
    others |= {"init": "xavier", "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    for name, value in SMALL.to_dict().items():
        other = others.get(name, not value if isinstance(value, bool) else value * 2)
        config = SimpleNamespace(**{**SMALL.to_dict(), name: other})  # some are not valid models
        if name in SHARED:
            assert huggingface_config(config, architecture="BertModel")[name] == other
        else:
            with pytest.raises(ValueError, match=f"has no {name} {other!r}"):
                huggingface_config(config, architecture="BertModel")


#: config.json as published with ModernBERT-base, in its size and form, but with our vocabulary.
PUBLISHED = {
    "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert",
    "attention_bias": False, "attention_dropout": 0.0, "classifier_activation": "gelu",
    "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "hidden_activation": "gelu",
    "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
    "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128,
    "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
    "mlp_dropout": 0.0, "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12,
    "num_hidden_layers": 22, "position_embedding_type": "absolute", "reference_compile": None,
    "tie_word_embeddings": True, "vocab_size": 50368,
}  # fmt: skip


@pytest.mark.parametrize("local", [10_000.0, None])
def test_the_published_form_of_the_config_is_read(local, tmp_path):
    """22 layers, a base of 160,000 in every third, 8,192 tokens; a local base of null is that."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | {"local_rope_theta": local}))
    found = read_huggingface_config(tmp_path)
    wanted = preset(
        "modern-base",
        vocab_size=50368,
        max_position_embeddings=8192,
        global_rope_theta=160_000.0,
        local_rope_theta=local or 160_000.0,
    )
    assert (found.model, found.pooling) == (wanted, "mean")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("norm_bias", True, r"norm_bias is True; only False is supported for ModernBERT"),
        ("classifier_activation", "relu", "classifier_activation is 'relu'; it must be hidden"),
        ("classifier_pooling", "max", "classifier_pooling is 'max'; known: cls, mean"),
        ("layer_types", ["sliding_attention"] * 3, "the global ones"),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn"}}, "only default is known"),
        ("rope_parameters", {"sliding_attention": {"type": "linear"}}, "only default is known"),
        ("rope_scaling", {"rope_type": "linear", "factor": 4.0}, "only None is supported"),
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
