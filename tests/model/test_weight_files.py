"""Weight files of every format and age, and folders that are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
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
POOLER, DECODER = "bert.pooler.dense.weight", "cls.predictions.decoder"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BertForPreTraining; tests that change it use a copy."""
    return save_folder(tmp_path_factory.mktemp("weights") / "saved", shaken(SMALL).eval())


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_names_of_2018_are_read(folder, copy, file):
    """Tied weights twice, buffers, gamma and beta."""
    renamed = ("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")
    old = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        for new, before in renamed:
            name = name.replace(new, before)
        old[name] = weight
    old[f"{DECODER}.bias"] = old.pop("cls.predictions.bias")
    old[f"{DECODER}.weight"] = old[WORD_EMBEDDINGS].clone()
    old["bert.embeddings.position_ids"] = torch.arange(24)[None]
    (copy / "model.safetensors").unlink()
    (torch.save if file.endswith("bin") else save_file)(old, copy / file)
    assert_equal_models(copy, folder)


def test_a_bare_encoder_may_have_a_prefix_or_none(copy):
    weights = load_file(copy / "model.safetensors")
    change(copy, architectures=["BertModel"])
    # Copies, because older versions of safetensors map the file, which is about to change.
    bert = {name: weights[name].clone() for name in weights if name.startswith("bert.")}
    bare = shutil.copytree(copy, copy.with_name("bare"))
    save_file(bert, copy / "model.safetensors")
    save_file({k.removeprefix("bert."): v for k, v in bert.items()}, bare / "model.safetensors")
    assert_equal_models(copy, bare)


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


@pytest.mark.parametrize(("tokens", "rows"), [(VOCAB, 128), (60, 64)])
def test_padding_rows_of_the_vocabulary_are_added_on_loading(folder, tokens, rows):
    stored = load_file(folder / "model.safetensors")[WORD_EMBEDDINGS]
    found = load_huggingface(folder, vocab_size=tokens)
    table = found.weights["encoder.embeddings.word_embeddings.weight"]
    assert (stored.shape, table.shape) == ((VOCAB, 32), (rows, 32))
    assert torch.equal(table[:tokens], stored[:tokens])
    assert not table[tokens:].any()
    assert found.weights["mlm_head.bias"].shape == (tokens,)
    assert found.config.model.vocab_size == tokens
    BertForPretraining(found.config.model).load_state_dict(found.weights)


def config(**values):
    return lambda folder: change(folder, **values)


def weights(values):
    return lambda folder: change_weights(folder, lambda found: found.update(values))


def files(*names):
    return lambda folder: instead_of_weights(folder, *names)


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


ELSEWHERE = json.dumps({"weight_map": {WORD_EMBEDDINGS: "../saved/model.safetensors"}}).encode()
DAMAGES = {
    "no config": (lambda f: (f / "config.json").unlink(), "it has no config.json"),
    "no JSON": (written("config.json", b"{"), "config.json cannot be read"),
    "a list": (written("config.json", b"[]"), "holds a JSON list"),
    "roberta": (
        config(model_type="roberta", architectures=["RobertaForMaskedLM"]),
        r"model_type 'roberta', architecture 'RobertaForMaskedLM'\); supported are model_type "
        "'bert' and 'modernbert' with BertForPreTraining, BertForMaskedLM",
    ),
    "another head": (config(architectures=["BertForNER"]), "architecture 'BertForNER'"),
    "relative": (
        config(position_embedding_type="relative_key"),
        "position_embedding_type is 'relative_key'; only 'absolute' is supported for BERT",
    ),
    "untied": (config(tie_word_embeddings=False), "tie_word_embeddings is False"),
    "heads": (config(num_attention_heads=5), "not divisible by num_attention_heads 5"),
    "missing": (
        lambda f: change_weights(f, lambda found: found.pop(POOLER)),
        f"not those of the BertForPreTraining in its config.json; missing: {POOLER}",
    ),
    "unexpected": (weights({"qa.weight": torch.zeros(2)}), "config.json; unexpected: qa.weight"),
    "shape": (
        config(vocab_size=90),
        rf"{WORD_EMBEDDINGS} has the shape \[100, 32\], but config.json says \[90, 32\]",
    ),
    "two values": (
        weights({f"{DECODER}.bias": torch.ones(VOCAB)}),
        "two different values of cls.predictions.bias",
    ),
    "another decoder": (
        weights({f"{DECODER}.weight": torch.ones(VOCAB, 32)}),
        f"{DECODER}.weight differs from the word embeddings",
    ),
    "quantized": (
        weights({POOLER: torch.zeros(32, 32, dtype=torch.int8)}),
        f"{POOLER} is not a tensor of floats",
    ),
    "cut": (
        written("model.safetensors", b"version https://git-lfs"),
        "model.safetensors cannot be read .*; download it again",
    ),
    "no weights": (files(), r"no weights \(no model.safetensors or pytorch_model.bin\)"),
    "index": (files("model.safetensors.index.json"), "index.json cannot be read"),
    "index of files elsewhere": (
        lambda f: instead_of_weights(f) or written("model.safetensors.index.json", ELSEWHERE)(f),
        "no weight_map to files beside it",
    ),
    "checkpoint": (
        files("bert_model.ckpt.index", "bert_model.ckpt.meta"),
        r"no weights .* Convert a TensorFlow model with `BertForPreTraining",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unusable_folder_is_named_in_one_line(copy, damage):
    spoil, message = DAMAGES[damage]
    spoil(copy)
    with pytest.raises(ValueError, match=message) as raised:
        load_huggingface(copy)
    assert "\n" not in str(raised.value)
    assert str(copy) in str(raised.value)


class Surprise:
    """Unpickling this calls a function."""

    def __reduce__(self):
        return Path.touch, (Path("surprise"),)


def test_no_code_of_a_pickle_is_run(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    instead_of_weights(copy)
    torch.save({"weight": Surprise()}, copy / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds more than weights, and code is never run here"):
        load_huggingface(copy)
    assert not (tmp_path / "surprise").exists()


@pytest.mark.parametrize(("changes", "message"), [
    ({"problem_type": "regression"}, "problem_type is 'regression'"),
    ({"id2label": {"0": "only"}, "label2id": None}, "has 1 label; a classifier needs"),
    ({"id2label": {"1": "a", "2": "b"}}, "it needs a name for each of 0, 1, 2"),
    ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label has 'a' more than once"),
    ({"id2label": {"0": "a", "1": "b", "2": "c"}}, r"weight has the shape \[2, 32\]"),
])  # fmt: skip
def test_classifiers_of_another_kind_are_refused(changes, message, tmp_path):
    model, architecture = BertForClassification(SMALL, 2), "BertForSequenceClassification"
    folder = save_folder(tmp_path / "saved", model, architecture=architecture, labels=("a", "b"))
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_huggingface(folder)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": None, "architectures": None}, None),
        ({"hidden_act": "gelu_new"}, "BertForPreTraining"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "BertForPreTraining"),
    ],
)
def test_configs_of_other_writers_are_read(folder, copy, changes, found):
    """The published bert-base-uncased says BertForMaskedLM and has all heads."""
    change(copy, **changes)
    read = load_huggingface(copy)
    assert (read.config.architecture, read.absent) == (found, ())
    assert (read.config.model.hidden_act == "gelu-tanh") == ("hidden_act" in changes)
    assert_equal_models(copy, folder)
