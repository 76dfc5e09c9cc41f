"""Hugging Face folders against `transformers`, in both directions: every number, every file."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import PRESETS, BertConfig, preset
from model.heads import (
    BertForClassification,
    BertForPretraining,
    masked_lm_loss_sum,
    next_sentence_loss_sum,
)
from model.huggingface.config import ARCHITECTURES, CARRIED, huggingface_config
from model.huggingface.convert import huggingface_names, load_huggingface, save_huggingface
from tests.support.small_huggingface import SMALL, quiet_transformers, save_folder, shaken
from tests.support.small_models import VOCAB, answers, batch_of, inputs_of

os.environ["HF_HUB_OFFLINE"] = "1"

SIZES = ("tiny", "mini", "small", "medium", "base", "large")


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


def in_transformers(folder: Path, architecture: str) -> Any:
    """The folder as their class loads it: nothing missing, left over, or of another shape."""
    import transformers

    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    return model.eval()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def assert_same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Of every weight of theirs that has one."""
    found = {}
    for name, parameter in ours.named_parameters():
        names = huggingface_names(name)
        gradient = parameter.grad
        assert gradient is not None
        if name.endswith("word_embeddings.weight"):
            assert not gradient[VOCAB:].any()
            gradient = gradient[:VOCAB]
        found |= dict(zip(names, gradient.chunk(len(names)), strict=True))
    for name, parameter in theirs.named_parameters():
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
def test_every_number_of_pretraining_is_that_of_transformers(
    config: BertConfig, tmp_path: Path
) -> None:
    config = replace(config, vocab_size=VOCAB, max_position_embeddings=24)
    model, batch = shaken(BertForPretraining(config)), inputs_of()
    theirs = in_transformers(save_folder(tmp_path / "ours", model), "BertForPreTraining")

    positions = batch_of()["masked_lm_positions"]
    labels, weights, follows = answers()
    dense = torch.full(batch["input_ids"].shape, -100)
    rows, slots = weights.nonzero(as_tuple=True)
    dense[rows, positions[rows, slots]] = labels[rows, slots]
    expected = theirs(**batch, labels=dense, next_sentence_label=follows, output_hidden_states=True)
    hidden, pooled = model.encoder(**batch)
    mlm_logits, nsp_logits = model(**batch, masked_lm_positions=positions)
    loss = masked_lm_loss_sum(mlm_logits, labels, weights) / weights.sum()
    loss = loss + next_sentence_loss_sum(nsp_logits, follows) / len(follows)

    assert_close(hidden, expected.hidden_states[-1])
    assert_close(pooled, theirs.bert(**batch).pooler_output)
    assert_close(nsp_logits, expected.seq_relationship_logits)
    every_row = torch.arange(4)[:, None]
    assert_close(mlm_logits[..., :VOCAB], expected.prediction_logits[every_row, positions])
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, theirs)


@pytest.mark.parametrize("labels", [("bad", "good"), ("1", "2", "3", "4", "5")], ids=["2", "5"])
def test_every_number_of_classification_is_that_of_transformers(
    labels: tuple[str, ...], tmp_path: Path
) -> None:
    model, batch = shaken(BertForClassification(SMALL, len(labels))), inputs_of()
    architecture = "BertForSequenceClassification"
    folder = save_folder(tmp_path / "ours", model, architecture=architecture, labels=labels)
    theirs = in_transformers(folder, architecture)
    classes = torch.tensor([0, 1, 0, len(labels) - 1])
    expected = theirs(**batch, labels=classes)
    logits = model(**batch)
    loss = torch.nn.functional.cross_entropy(logits, classes)
    assert_close(logits, expected.logits)
    assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, theirs)
    assert theirs.config.id2label == dict(enumerate(labels))
    assert theirs.config.label2id == {label: i for i, label in enumerate(labels)}
    found = load_huggingface(folder)
    assert found.config.labels == labels
    assert_holds(found.weights, model)


def assert_holds(weights: dict[str, Tensor], model: torch.nn.Module) -> None:
    """They are the weights of the model, bit for bit, as far as they go."""
    ours = model.state_dict()
    assert {name for name in weights if name in ours}
    for name in weights.keys() & ours.keys():
        assert torch.equal(weights[name], ours[name]), name


@pytest.mark.parametrize(
    ("architecture", "absent"),
    [
        ("BertForPreTraining", ()),
        ("BertForMaskedLM", ("pooler", "nsp_head")),
        ("BertModel", ("mlm_head", "nsp_head")),
    ],
)
def test_what_transformers_saves_comes_back_bit_for_bit(
    architecture: str, absent: tuple[str, ...], tmp_path: Path
) -> None:
    model = shaken(BertForPretraining(SMALL))
    theirs = in_transformers(
        save_folder(tmp_path / "ours", model, architecture=architecture), architecture
    )
    theirs.save_pretrained(tmp_path / "theirs")
    found = load_huggingface(tmp_path / "theirs")
    assert found.config.model == SMALL
    assert found.config.architecture == architecture
    assert found.absent == absent
    assert_holds(found.weights, model)
    names = set(model.state_dict()) - set(found.weights)
    assert {name.split(".")[0] for name in names} <= {"mlm_head", "nsp_head", "encoder"}
    assert ("encoder.pooler.weight" in names) == ("pooler" in absent)


def test_a_model_drawn_by_transformers_gives_its_logits_here(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{
            name: value
            for name, value in huggingface_config(SMALL, architecture="BertModel").items()
            if name not in ("architectures", "model_type")
        }
    )
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path)
    model = BertForPretraining(SMALL, seed=9).eval()
    model.load_state_dict(load_huggingface(tmp_path).weights)
    batch, positions = inputs_of(), torch.tensor([[3, 7], [2, 5], [1, 6], [4, 0]])
    mlm_logits, nsp_logits = model(**batch, masked_lm_positions=positions)
    expected = theirs(**batch)
    every_row = torch.arange(4)[:, None]
    assert_close(mlm_logits[..., :VOCAB], expected.prediction_logits[every_row, positions])
    assert_close(nsp_logits, expected.seq_relationship_logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_a_folder_without_a_warning(
    architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = ("a", "b", "c") if "Classification" in architecture else ()
    model = BertForClassification(SMALL, 3) if labels else BertForPretraining(SMALL)
    in_transformers(
        save_folder(tmp_path / "ours", model, architecture=architecture, labels=labels),
        architecture,
    )
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name.removeprefix("bert-") not in SIZES]
)
def test_what_transformers_has_no_words_for_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the BERT of transformers has no ") as raised:
        save_huggingface(tmp_path, preset(name), {})
    assert not list(tmp_path.iterdir())
    if name == "nano":
        assert "norm_position 'pre', final_norm True" in str(raised.value)


def test_every_field_is_carried_over_or_refused_by_its_name() -> None:
    others = {"hidden_act": "relu", "norm_position": "pre", "positions": "sinusoids"}
    others |= {"init": "xavier", "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    for name, value in SMALL.to_dict().items():
        other = others.get(name, not value if isinstance(value, bool) else value * 2)
        config = SimpleNamespace(**{**SMALL.to_dict(), name: other})  # some make no model at all
        if name in CARRIED:
            assert huggingface_config(config, architecture="BertModel")[name] == other
        else:
            with pytest.raises(ValueError, match=f"has no {name} {other!r}"):
                huggingface_config(config, architecture="BertModel")
