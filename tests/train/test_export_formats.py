"""Exported ONNX graphs, and models that `transformers` runs with code of ours, against torch."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.train.export import onnx_graphs
from clozeline.train.export.custom_model import save_custom_model
from clozeline.train.export.onnx_graphs import write_run_graphs
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.labelled.scores import softmax
from tests.support.command import output_of, refused
from tests.support.small import small_tokenizer
from tests.support.small_models import VOCAB, narrow, numbers, shake, shaken
from tests.support.small_runs import write_small_run

pytestmark = pytest.mark.usefixtures("quiet", "own_modules")

TOKENIZER = small_tokenizer()
#: Every way in which presets differ that is in a graph: positions, windows, segments, heads.
KINDS = ("bert-tiny", "nano", "bert-pytorch-base", "d2l", "modern-mini")
TEXTS = ("the cat sat", "dog", "it ran to the river", "the cat sat " * 9 + "dog " * 9)


def small(name):
    """A preset with the vocabulary of the tokenizer."""
    return replace(narrow(name), vocab_size=TOKENIZER.vocab_size)


SLOW = (pytest.param(name, marks=pytest.mark.slow) for name in KINDS if name != "modern-mini")


@pytest.mark.parametrize("name", ["modern-mini", *SLOW])
def test_the_graphs_of_a_model_give_its_outputs_for_any_batch(name, tmp_path):
    """Rows of other numbers and lengths than those that the graph was traced with."""
    model = shaken(narrow(name)).eval()
    assert write_run_graphs(tmp_path, model) <= 1e-4
    assert b"/model/bert.py" not in (tmp_path / "model.onnx").read_bytes()
    encoder, fill = (
        onnxruntime.InferenceSession(tmp_path / name) for name in ("encoder.onnx", "model.onnx")
    )
    has_segments = model.config.type_vocab_size > 0
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if has_segments else [])]
    shape = ["batch", "sequence"]
    assert [(node.name, node.shape) for node in fill.get_inputs()] == [(x, shape) for x in names]
    draws = torch.Generator().manual_seed(0)
    for rows, length in ((1, 1), (1, 32), (5, 9)):
        lengths = (length - 2 * torch.arange(rows)[:, None]).clamp(min=1)
        mask = torch.arange(length) < lengths
        ids = torch.randint(0, VOCAB, (rows, length), generator=draws)
        types = (mask & (torch.arange(length) > length // 2)).long()
        batch = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
        feeds = {name: batch[name].numpy() for name in names}
        everywhere = torch.arange(length).expand(rows, -1)
        with torch.no_grad():
            hidden, pooled = model.encoder(ids, types, mask)
            logits, _ = model(ids, types, mask, everywhere)
        found_hidden, found_pooled = encoder.run(None, feeds)
        (found_logits,) = fill.run(None, feeds)
        close = {"atol": 1e-4, "rtol": 0}
        np.testing.assert_allclose(found_hidden[mask.numpy()], hidden[mask].numpy(), **close)
        np.testing.assert_allclose(found_pooled, pooled.numpy(), **close)
        wanted = logits[..., :VOCAB][mask].numpy()
        np.testing.assert_allclose(found_logits[mask.numpy()], wanted, **close)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Fine-tuned from a `nano`, which no architecture of `transformers` expresses."""
    folder = tmp_path_factory.mktemp("onnx")
    model = BertForPretraining(small("nano"), seed=7)
    write_small_run(folder / "run", model, TOKENIZER, max_seq_length=12)
    words = (f"the {'cat' if i % 2 else 'dog'} sat,{'yes' if i % 2 else 'no'}" for i in range(40))
    (folder / "rows.csv").write_text("\n".join(["text,label", *words]) + "\n")
    output_of("finetune", folder / "run", folder / "rows.csv", "--out", folder / "classifier",
              "--no-baseline", "--epochs=1", "--learning-rate=3e-3",
              "--truncate=middle")  # fmt: skip
    return folder / "classifier"


@pytest.fixture(scope="module")
def exported(classifier):
    out = classifier.with_name("exported")
    said = output_of("export", classifier, "--format", "onnx", "--out", out)
    assert re.fullmatch(rf"ONNX graph of [\d,]+ parameters, within \d\S+ of torch: {out}\n", said)
    return out


def in_onnxruntime(folder, rows):
    """The probabilities of encoded rows, each alone, [N, C]."""
    graph = onnxruntime.InferenceSession(folder / "model.onnx")
    found = []
    for row in range(len(rows)):
        ids, types, mask = rows.inputs(np.array([row]), is_tight=True)
        batch = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
        feeds = {node.name: batch[node.name].numpy() for node in graph.get_inputs()}
        found.append(graph.run(None, feeds)[0][0])
    return softmax(np.array(found))


def test_an_exported_classifier_predicts_the_same(classifier, exported, tmp_path):
    out = shutil.copytree(exported, tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {
        *("model.onnx", "onnx.json", "tokenizer.json", "vocab.txt"),
        *("tokenizer_config.json", "special_tokens_map.json", "SHA256SUMS"),
    }
    ours = load_classifier(classifier)
    values = json.loads((out / "onnx.json").read_bytes())
    assert (values["names"], values["truncate"]) == (list(ours.names), "middle")
    found = in_onnxruntime(out, ours.encoder.encode([(text,) for text in TEXTS]))
    np.testing.assert_allclose(found, ours.classify(TEXTS), atol=1e-4)
    assert "is an ONNX folder of `clozeline export`" in refused("predict", out, "the cat")

    (out / "kept.txt").write_text("years of work")
    again = ("export", classifier, "--format", "onnx", "--out", out, "--overwrite")
    assert "not part of an export (kept.txt)" in refused(*again)


def test_a_tokenizer_of_transformers_reads_for_the_graph(classifier, exported):
    """As the manual shows."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    batch = tokenizer([*TEXTS[:3]], truncation=True, padding=True, return_tensors="np")
    graph = onnxruntime.InferenceSession(exported / "model.onnx")
    [logits] = graph.run(None, {node.name: batch[node.name] for node in graph.get_inputs()})
    wanted = load_classifier(classifier).classify(TEXTS[:3])
    np.testing.assert_allclose(softmax(logits), wanted, atol=1e-4)


@pytest.mark.slow
def test_pairs_of_empty_texts_have_the_same_probabilities(classifier, tmp_path):
    rows = ["first,second,label", *(f"the {a},it {a},{a}" for a in 20 * ["cat", "dog"])]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    pairs = tmp_path / "pairs"
    output_of("finetune", classifier.parent / "run", tmp_path / "rows.csv", "--text", "first",
              "--text-pair", "second", "--no-baseline", "--epochs", 1, "--out", pairs)  # fmt: skip
    texts = [("", ""), ("the cat", ""), ("", "the dog"), (" ", " "), ("the cat", "the dog")]
    ours = load_classifier(pairs)
    wanted = ours.classify(texts)
    # " " is empty, too; the rows of a batch may differ in the last digit.
    assert len({*wanted[:, 0].round(6)}) == 4
    out = tmp_path / "onnx"
    output_of("export", pairs, "--format", "onnx", "--out", out)
    found = in_onnxruntime(out, ours.encoder.encode(texts))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(("bias", "difference"), [(9.0, r"\d.\de\+00"), (torch.nan, "nan")])
def test_a_graph_that_differs_from_the_model_is_refused(classifier, exported, bias, difference):
    """As where onnxruntime computes something else, or no numbers at all."""
    model = load_classifier(classifier).model
    torch.nn.init.constant_(model.classifier.bias, bias)
    wanted = onnx_graphs._Graph(model, model)
    with pytest.raises(InputError, match=f"model.onnx differs from the model by {difference} "):
        onnx_graphs._largest_difference(exported / "model.onnx", wanted)


# --- Models that `transformers` does not know are exported with code that computes what ours does -
OTHERS = ("nano", "micro", "d2l", "bert-pytorch-base")


@pytest.fixture
def own_modules(monkeypatch, tmp_path_factory):
    """Where `transformers` copies the code of a folder; by default in the home."""
    from transformers import dynamic_module_utils

    folder = str(tmp_path_factory.mktemp("modules"))
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", folder)
    monkeypatch.syspath_prepend(folder)


def opened(folder, kind):
    """A model of the folder, if no weight is missing and none is left over, and its tokenizer."""
    import transformers

    model, info = getattr(transformers, kind).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert not any(info.values()), info
    # Without the flag the tokenizer asks whether to run the code, too.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return model.eval(), tokenizer


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
def test_a_run_of_every_other_preset_opens_in_transformers(name, tmp_path):
    ours = shake(BertForPretraining(small(name), seed=3)).eval()
    run = write_small_run(tmp_path / "run", ours, TOKENIZER, max_seq_length=24)
    said = output_of("export", run, "--out", tmp_path / "out")
    assert said.startswith("ClozelineForMaskedLM of ")
    assert "modeling_clozeline.py (trust_remote_code=True)" in said
    assert "trust_remote_code=True" in (tmp_path / "out" / "README.md").read_text()
    model, tokenizer = opened(tmp_path / "out", "AutoModelForMaskedLM")
    batch = tokenizer([*TEXTS[:3]], ["sat", "the mat", "dog"], padding=True, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    places = torch.arange(mask.shape[1]).expand(mask.shape)
    theirs = model(**batch).logits
    inputs = (batch["input_ids"], batch["token_type_ids"], mask)
    logits = ours(*inputs, places)[0][..., : TOKENIZER.vocab_size]
    encoder, _ = opened(tmp_path / "out", "AutoModel")
    states = encoder(**batch).last_hidden_state
    torch.testing.assert_close(theirs[mask], logits[mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(states[mask], ours.encoder(*inputs)[0][mask], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", [*OTHERS, "bert-mini", "modern-mini"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "mask"])
def test_logits_of_every_pooling_are_ours(name, pooling, tmp_path):
    """Written without a command: `modern-mini` with a window that is narrower than a row."""
    import transformers

    ours = shake(BertForClassification(small(name), 3, pooling=pooling, mask_position=2)).eval()
    options = {"labels": ("a", "b", "c"), "pooling": pooling, "mask_position": 2}
    save_custom_model(tmp_path, ours.config, ours.state_dict(), **options)
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(tmp_path, trust_remote_code=True).eval()
    ids = torch.randint(5, TOKENIZER.vocab_size, (3, 20), generator=numbers(1))
    mask = torch.arange(20) < torch.tensor([[20], [15], [3]])
    types = (torch.arange(20) >= 9).long().expand(3, 20)
    theirs = model(ids, attention_mask=mask.long(), token_type_ids=types).logits
    torch.testing.assert_close(theirs, ours(ids, types, mask), atol=1e-5, rtol=0)
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}


@pytest.mark.parametrize("prompt", [(), ("--prompt", "the [MASK] sat")])
def test_a_classifier_of_the_default_preset_answers_there_as_here(prompt, classifier, tmp_path):
    run, rows = classifier.parent / "run", classifier.parent / "rows.csv"
    fixed = ("--no-baseline", "--learning-rate=3e-3", "--epochs=1", *prompt)
    output_of("finetune", run, rows, "--out", tmp_path / "classifier", *fixed)
    said = output_of("export", tmp_path / "classifier", "--out", tmp_path / "out")
    assert said.startswith("ClozelineForSequenceClassification of ")
    model, tokenizer = opened(tmp_path / "out", "AutoModelForSequenceClassification")
    batch = tokenizer([*TEXTS], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**batch).logits.softmax(-1)
    wanted = load_classifier(tmp_path / "classifier").classify(TEXTS)
    np.testing.assert_allclose(theirs, wanted, atol=1e-5)
