"""Models that `transformers` does not know are exported with code that computes what ours does."""

from dataclasses import replace

import pytest
import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.train.finetuning.classifier import load_classifier
from tests.support.command import output_of
from tests.support.small import small_tokenizer
from tests.support.small_models import shake
from tests.support.small_runs import write_small_run

pytestmark = pytest.mark.usefixtures("quiet", "own_modules")

TOKENIZER = small_tokenizer()
NAMES = ("nano", "micro", "d2l", "bert-pytorch-base")
SIZES = {
    "vocab_size": TOKENIZER.vocab_size,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 24,
}
TEXTS = ["the cat sat", "the dog sat on the mat with the cat", "cat"]


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


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_every_other_preset_opens_in_transformers(name, tmp_path):
    config = preset(name, **SIZES)
    ours = shake(BertForPretraining(config, seed=3)).eval()
    run = write_small_run(tmp_path / "run", ours, TOKENIZER, max_seq_length=24)
    said = output_of("export", run, "--out", tmp_path / "out")
    assert said.startswith("ClozelineForMaskedLM of ")
    assert "modeling_clozeline.py (trust_remote_code=True)" in said
    assert "trust_remote_code=True" in (tmp_path / "out" / "README.md").read_text()
    model, tokenizer = opened(tmp_path / "out", "AutoModelForMaskedLM")
    batch = tokenizer(TEXTS, ["sat", "the mat", "dog"], padding=True, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    places = torch.arange(mask.shape[1]).expand(mask.shape)
    with torch.no_grad():
        theirs = model(**batch).logits
        inputs = (batch["input_ids"], batch["token_type_ids"], mask)
        logits = ours(*inputs, places)[0][..., : TOKENIZER.vocab_size]
        encoder, _ = opened(tmp_path / "out", "AutoModel")
        states = encoder(**batch).last_hidden_state
        torch.testing.assert_close(theirs[mask], logits[mask], atol=1e-5, rtol=0)
        torch.testing.assert_close(states[mask], ours.encoder(*inputs)[0][mask], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [*NAMES, "bert-mini", "modern-mini"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "mask"])
def test_logits_of_every_pooling_are_ours(name, pooling, tmp_path):
    """Written without a command: `modern-mini` with a window that is narrower than a row."""
    from clozeline.train.export.custom_model import save_custom_model

    config = replace(preset(name, **SIZES), local_attention=4)
    ours = shake(BertForClassification(config, 3, pooling=pooling, mask_position=2)).eval()
    options = {"labels": ("a", "b", "c"), "pooling": pooling, "mask_position": 2}
    save_custom_model(tmp_path, ours.config, ours.state_dict(), **options)
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, trust_remote_code=True
    ).eval()
    ids = torch.randint(
        5, TOKENIZER.vocab_size, (3, 20), generator=torch.Generator().manual_seed(1)
    )
    mask = torch.arange(20) < torch.tensor([[20], [15], [3]])
    types = (torch.arange(20) >= 9).long().expand(3, 20)
    with torch.no_grad():
        theirs = model(ids, attention_mask=mask.long(), token_type_ids=types).logits
        torch.testing.assert_close(theirs, ours(ids, types, mask), atol=1e-5, rtol=0)
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}


@pytest.mark.parametrize("prompt", [(), ("--prompt", "the [MASK] sat")])
def test_a_classifier_of_the_default_preset_answers_there_as_here(prompt, tmp_path):
    from clozeline.train.inference.predict import predict

    run = write_small_run(
        tmp_path / "run",
        BertForPretraining(preset("nano", **SIZES), seed=3),
        TOKENIZER,
        max_seq_length=24,
    )
    rows = [f"the {animal} sat {i},{animal}" for i in range(20) for animal in ("cat", "dog")]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    fixed = ("--no-baseline", "--learning-rate=3e-3", "--epochs=1", *prompt)
    output_of("finetune", run, tmp_path / "rows.csv", "--out", tmp_path / "classifier", *fixed)
    said = output_of("export", tmp_path / "classifier", "--out", tmp_path / "out")
    assert said.startswith("ClozelineForSequenceClassification of ")
    model, tokenizer = opened(tmp_path / "out", "AutoModelForSequenceClassification")
    texts = [*TEXTS, "the cat sat " * 20]
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**batch).logits.softmax(-1)
    ours = [one.probabilities for one in predict(tmp_path / "classifier", texts)]
    names = load_classifier(tmp_path / "classifier").names
    expected = torch.tensor([[one[name] for name in names] for one in ours])
    torch.testing.assert_close(theirs.double(), expected.double(), atol=1e-5, rtol=0)
