"""Hugging Face folders, written and read, compared with `transformers`."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from clozeline.model.config import PRESETS, preset
from clozeline.model.heads import (
    BertForClassification,
    BertForPretraining,
    masked_lm_loss_sum,
    next_sentence_loss_sum,
)
from clozeline.model.huggingface.config import (
    ARCHITECTURES,
    SHARED,
    huggingface_config,
    model_type_of,
)
from clozeline.model.huggingface.convert import load_huggingface
from clozeline.model.huggingface.names import FAMILIES
from tests.support.small_huggingface import MODERN, SMALL, save_folder
from tests.support.small_models import VOCAB, answers, batch_of, inputs_of, shake, shaken

pytestmark = pytest.mark.usefixtures("quiet")

SIZES = ("tiny", "mini", "small", "medium", "base", "large")


def in_transformers(folder, architecture):
    """The folder loaded by `transformers`: nothing missing, unexpected, or of another shape."""
    import transformers

    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
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


@pytest.mark.parametrize(
    "config",
    [
        *(
            pytest.param(replace(PRESETS[f"bert-{name}"], num_hidden_layers=1), id=name)
            for name in SIZES
        ),
        pytest.param(replace(SMALL, hidden_act="relu", type_vocab_size=3), id="relu"),
        pytest.param(replace(SMALL, hidden_act="gelu-tanh"), id="gelu-tanh"),
    ],
)
def test_pretraining_gives_the_outputs_and_gradients_of_transformers(config, tmp_path):
    config = replace(config, vocab_size=VOCAB, max_position_embeddings=24)
    model, batch = shaken(config).eval(), inputs_of()
    reference = in_transformers(save_folder(tmp_path / "saved", model), "BertForPreTraining")

    positions = batch_of()["masked_lm_positions"]
    labels, weights, follows = answers()
    dense = torch.full(batch["input_ids"].shape, -100)
    rows, slots = weights.nonzero(as_tuple=True)
    dense[rows, positions[rows, slots]] = labels[rows, slots]
    expected = reference(
        **batch, labels=dense, next_sentence_label=follows, output_hidden_states=True
    )
    hidden, pooled = model.encoder(**batch)
    mlm_logits, nsp_logits = model(**batch, masked_lm_positions=positions)
    loss = masked_lm_loss_sum(mlm_logits, labels, weights) / weights.sum()
    loss = loss + next_sentence_loss_sum(nsp_logits, follows) / len(follows)

    assert_close(hidden, expected.hidden_states[-1])
    assert_close(pooled, reference.bert(**batch).pooler_output)
    assert_close(nsp_logits, expected.seq_relationship_logits)
    every_row = torch.arange(4)[:, None]
    assert_close(mlm_logits[..., :VOCAB], expected.prediction_logits[every_row, positions])
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, reference)


@pytest.mark.parametrize(
    ("config", "labels", "pooling"),
    [
        pytest.param(SMALL, ("bad", "good"), "cls", id="2"),
        pytest.param(SMALL, ("1", "2", "3", "4", "5"), "cls", id="5"),
        pytest.param(MODERN, ("bad", "fair", "good"), "cls", id="modern, cls"),
        pytest.param(MODERN, ("bad", "fair", "good"), "mean", id="modern, mean"),
    ],
)
def test_classification_gives_the_outputs_and_gradients_of_transformers(
    config, labels, pooling, tmp_path
):
    model = shake(BertForClassification(config, len(labels), pooling=pooling)).eval()
    batch = inputs_of()
    architecture = f"{'Modern' * (config is MODERN)}BertForSequenceClassification"
    options = {"architecture": architecture, "labels": labels, "pooling": pooling}
    folder = save_folder(tmp_path / "saved", model, **options)
    reference, classes = in_transformers(folder, architecture), torch.arange(4) % len(labels)
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
def test_models_saved_by_transformers_load_bit_for_bit(config, architecture, absent, tmp_path):
    """ModernBERT's config.json has another form then: a kind and a base for each layer."""
    model = shaken(config).eval()
    saved = save_folder(tmp_path / "saved", model, architecture=architecture)
    in_transformers(saved, architecture).save_pretrained(tmp_path / "reference")
    found = load_huggingface(tmp_path / "reference")
    assert found.config.model == config
    assert (found.config.architecture, found.absent) == (architecture, absent)
    assert_holds(found.weights, model)
    names = set(model.state_dict()) - set(found.weights)
    assert {name.split(".")[0] for name in names} <= {"mlm_head", "nsp_head", "encoder"}
    assert ("encoder.pooler.weight" in names) == ("pooler" in absent)


def test_a_model_initialized_by_transformers_gives_the_same_logits_here(tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{
            name: value
            for name, value in huggingface_config(SMALL, architecture="BertModel").items()
            if name not in ("architectures", "model_type")
        }
    )
    reference = transformers.BertForPreTraining(config).eval()
    reference.save_pretrained(tmp_path)
    model = BertForPretraining(SMALL, seed=9).eval()
    model.load_state_dict(load_huggingface(tmp_path).weights)
    batch, positions = inputs_of(), torch.tensor([[3, 7], [2, 5], [1, 6], [4, 0]])
    mlm_logits, nsp_logits = model(**batch, masked_lm_positions=positions)
    expected = reference(**batch)
    every_row = torch.arange(4)[:, None]
    assert_close(mlm_logits[..., :VOCAB], expected.prediction_logits[every_row, positions])
    assert_close(nsp_logits, expected.seq_relationship_logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_a_folder_without_a_warning(architecture, tmp_path, caplog):
    labels = ("a", "b", "c") if "Classification" in architecture else ()
    sizes = {name: SMALL.to_dict()[name] for name in ("vocab_size", "hidden_size")}
    modern = preset("modern-mini", **sizes, num_attention_heads=2)
    config = modern if architecture.startswith("Modern") else SMALL
    model = BertForClassification(config, 3) if labels else BertForPretraining(config)
    in_transformers(
        save_folder(tmp_path / "saved", model, architecture=architecture, labels=labels),
        architecture,
    )
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


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
