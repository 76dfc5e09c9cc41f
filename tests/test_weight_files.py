"""Weight files of every format and age, and folders that are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.model.huggingface.convert import load_huggingface
from clozeline.model.huggingface.weight_files import weights_sha256
from tests.support.small_huggingface import (
    SMALL,
    assert_equal_models,
    change,
    change_weights,
    instead_of_weights,
    quiet_transformers,
    save_folder,
)
from tests.support.small_models import VOCAB, shaken

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BertForPreTraining; tests that change it use a copy."""
    return save_folder(tmp_path_factory.mktemp("weights") / "saved", shaken(SMALL).eval())


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def old_names(weights):
    """The names in checkpoints of 2018 and 2019: tied weights twice, buffers, gamma and beta."""
    old = {}
    for name, weight in weights.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta")] = weight
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(24)[None]
    return old


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_names_of_2018_are_read(folder, copy, file):
    weights = old_names(load_file(folder / "model.safetensors"))
    weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias")
    (copy / "model.safetensors").unlink()
    if file.endswith("bin"):
        torch.save(weights, copy / file)
    else:
        save_file(weights, copy / file)
    assert_equal_models(copy, folder)


def test_a_bare_encoder_may_have_a_prefix_or_none(copy):
    weights = load_file(copy / "model.safetensors")
    change(copy, architectures=["BertModel"])
    # Copies, because older versions of safetensors map the file, which is about to change.
    bert = {name: weights[name].clone() for name in weights if name.startswith("bert.")}
    save_file(bert, copy / "model.safetensors")
    found = {name: weight.clone() for name, weight in load_huggingface(copy).weights.items()}
    save_file({k.removeprefix("bert."): v for k, v in bert.items()}, copy / "model.safetensors")
    again = load_huggingface(copy).weights
    assert found.keys() == again.keys()
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_parts_with_an_index_are_one_model(folder, tmp_path):
    import transformers

    with quiet_transformers():
        model = transformers.BertForPreTraining.from_pretrained(folder)
        model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert_equal_models(tmp_path, folder)
    assert weights_sha256(tmp_path) != weights_sha256(folder)


def test_half_precision_is_read_as_float32(folder, copy):
    weights = load_file(folder / "model.safetensors")
    halved = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(halved, copy / "model.safetensors")
    found, exact = load_huggingface(copy).weights, load_huggingface(folder).weights
    assert {weight.dtype for weight in found.values()} == {torch.float32}
    for name, weight in exact.items():
        torch.testing.assert_close(found[name], weight, atol=1e-3, rtol=1e-2)


def test_padding_rows_of_the_vocabulary_are_added_on_loading(folder):
    stored = load_file(folder / "model.safetensors")
    assert stored[WORD_EMBEDDINGS].shape == (VOCAB, 32)
    for tokens, rows in ((VOCAB, 128), (60, 64)):
        found = load_huggingface(folder, vocab_size=tokens)
        table = found.weights["encoder.embeddings.word_embeddings.weight"]
        assert table.shape == (rows, 32)
        assert torch.equal(table[:tokens], stored[WORD_EMBEDDINGS][:tokens])
        assert not table[tokens:].any()
        assert found.weights["mlm_head.bias"].shape == (tokens,)
        assert found.config.model.vocab_size == tokens
        BertForPretraining(found.config.model).load_state_dict(found.weights)


POOLER = "bert.pooler.dense.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "it has no config.json"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "holds a JSON list"),
    "roberta": (
        lambda f: change(f, model_type="roberta", architectures=["RobertaForMaskedLM"]),
        r"model_type 'roberta', architecture 'RobertaForMaskedLM'\); supported are model_type "
        "'bert' and 'modernbert' with BertForPreTraining, BertForMaskedLM",
    ),
    "another head": (
        lambda f: change(f, architectures=["BertForTokenClassification"]),
        "architecture 'BertForTokenClassification'",
    ),
    "relative": (
        lambda f: change(f, position_embedding_type="relative_key"),
        "position_embedding_type is 'relative_key'; only plain BERT is supported .absolute.",
    ),
    "decoder": (lambda f: change(f, is_decoder=True), "is_decoder is True"),
    "untied": (lambda f: change(f, tie_word_embeddings=False), "tie_word_embeddings is False"),
    "act": (lambda f: change(f, hidden_act="silu"), "hidden_act is 'silu'; supported: gelu, relu"),
    "heads": (lambda f: change(f, num_attention_heads=5), "not divisible by num_attention_heads 5"),
    "missing": (
        lambda f: change_weights(f, lambda w: w.pop(POOLER)),
        f"not those of the BertForPreTraining in its config.json; missing: {POOLER}",
    ),
    "unexpected": (
        lambda f: change_weights(f, lambda w: w.update({"qa.weight": torch.zeros(2)})),
        "config.json; unexpected: qa.weight",
    ),
    "fewer layers in the config": (
        lambda f: change(f, num_hidden_layers=1),
        r"unexpected: bert.encoder.layer.1.\S+, \S+, \S+ and 13 more",
    ),
    "shape": (
        lambda f: change(f, vocab_size=90),
        rf"{WORD_EMBEDDINGS} has the shape \[100, 32\], but config.json says \[90, 32\]",
    ),
    "two values": (
        lambda f: change_weights(
            f, lambda w: w.update({"cls.predictions.decoder.bias": torch.ones(VOCAB)})
        ),
        "two different values of cls.predictions.bias",
    ),
    "another decoder": (
        lambda f: change_weights(
            f, lambda w: w.update({"cls.predictions.decoder.weight": torch.ones(VOCAB, 32)})
        ),
        "cls.predictions.decoder.weight differs from the word embeddings",
    ),
    "quantized": (
        lambda f: change_weights(f, lambda w: w.update({POOLER: w[POOLER].to(torch.int8)})),
        f"{POOLER} is not a tensor of floats",
    ),
    "cut": (
        lambda f: (f / "model.safetensors").write_bytes(b"version https://git-lfs"),
        "model.safetensors cannot be read .*; download it again",
    ),
    "cut pickle": (
        lambda f: instead_of_weights(f, "pytorch_model.bin"),
        "pytorch_model.bin cannot be read",
    ),
    "no weights": (
        lambda f: instead_of_weights(f),
        r"no weights \(no model.safetensors or pytorch_model.bin\)",
    ),
    "index": (
        lambda f: instead_of_weights(f, "model.safetensors.index.json"),
        "index.json cannot be read",
    ),
    "checkpoint": (
        lambda f: instead_of_weights(f, "bert_model.ckpt.index", "bert_model.ckpt.meta"),
        r"TensorFlow model \(bert_model.ckpt.index\), which is not supported. With transformers 4 "
        "and TensorFlow installed, run `python -m transformers.models.bert.convert_bert_original",
    ),
    "h5": (lambda f: instead_of_weights(f, "tf_model.h5"), r"from_tf=True\).save_pretrained"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unusable_folder_is_named_in_one_line(copy, damage):
    spoil, message = DAMAGES[damage]
    spoil(copy)
    with pytest.raises(ValueError, match=message) as raised:
        load_huggingface(copy)
    assert "\n" not in str(raised.value)
    assert str(copy) in str(raised.value)


def test_an_index_may_not_point_out_of_its_folder(copy):
    instead_of_weights(copy)
    index = {"weight_map": {WORD_EMBEDDINGS: "../saved/model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="no weight_map to files beside it"):
        load_huggingface(copy)


class Surprise:
    """Unpickling this calls a function."""

    def __reduce__(self):
        return Path.touch, (Path("surprise"),)


def test_no_code_of_a_pickle_is_run(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    instead_of_weights(copy)
    torch.save({"weight": Surprise()}, copy / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickle of more than weights, which is never opened here"):
        load_huggingface(copy)
    assert not (tmp_path / "surprise").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem_type": "regression"}, "problem_type is 'regression'"),
        (
            {"id2label": {"0": "only"}, "label2id": None},
            "has 1 label; a classifier needs at least 2",
        ),
        ({"id2label": {"1": "a", "2": "b"}}, "it needs a name for each of 0, 1, 2"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label has 'a' more than once"),
        (
            {"id2label": {"0": "a", "1": "b", "2": "c"}},
            r"classifier.weight has the shape \[2, 32\]",
        ),
    ],
)
def test_classifiers_of_another_kind_are_refused(changes, message, tmp_path):
    model, architecture = BertForClassification(SMALL, 2), "BertForSequenceClassification"
    folder = save_folder(tmp_path / "saved", model, architecture=architecture, labels=("a", "b"))
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_huggingface(folder)


@pytest.mark.parametrize("act", ["gelu_new", "gelu_pytorch_tanh"])
def test_both_names_of_the_tanh_gelu_are_supported(copy, act):
    change(copy, hidden_act=act)
    assert load_huggingface(copy).config.model.hidden_act == "gelu-tanh"


def test_the_file_names_its_framework_and_is_readable_by_all(folder):
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}  # older versions of transformers require it
    assert path.stat().st_mode == (folder / "config.json").stat().st_mode


def test_weights_beyond_the_architecture_are_read(folder, copy):
    """The published bert-base-uncased says BertForMaskedLM and has all heads."""
    change(copy, architectures=["BertForMaskedLM"])
    assert load_huggingface(copy).absent == ()
    assert_equal_models(copy, folder)


def test_a_config_without_model_type_and_architecture_is_read(folder, copy):
    change(copy, model_type=None, architectures=None)
    assert load_huggingface(copy).config.architecture is None
    assert_equal_models(copy, folder)
