"""Classifiers that read the class at the [MASK] of a prompt: rows, first logits, whole commands."""

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.model.heads import BertForClassification, BertForPretraining, load_encoder
from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.classifier_folder import read_metadata
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.compare import finetune
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import start_at_words
from clozeline.train.labelled.encoding import Encoder, ids_with_masks
from clozeline.train.labelled.rows import read_texts
from tests.pipeline.test_encoder_words import TOKENIZERS
from tests.support.command import output_of
from tests.support.small import lists
from tests.support.small_models import narrow, shaken
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run
from tests.train.test_export_formats import in_onnxruntime

WORDS = ["it", "was", ".", "lamp", "broke", "works", "good", "fine", "bad", "poor"]
TOKENIZER = tokenizer_of(*WORDS)
PROMPT = "It was it was it [MASK] ."  # its mask is further right than short texts are long
CLASSES = "no=bad,poor; yes=good"
MODEL = one_layer(TOKENIZER, positions=32)
QUICK = FinetuneConfig(prompt=PROMPT, label_words=CLASSES, epochs=1, learning_rate=1e-2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that knows nothing, and rows whose last word decides the class."""
    folder = tmp_path_factory.mktemp("prompt")
    write_small_run(folder / "run", BertForPretraining(MODEL, seed=7), TOKENIZER, max_seq_length=28)
    rows = (f"lamp {'works' if i % 2 else 'broke'},{'yes' if i % 2 else 'no'}" for i in range(40))
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return folder


texts = st.lists(st.sampled_from([*WORDS, "[MASK]", "\u0130", "??"]), max_size=20).map(" ".join)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.booleans())
def test_a_prompt_follows_cls_in_the_row_of_a_text_that_has_less_room(rows, is_pair):
    pairs = rows if is_pair else [row[:1] for row in rows]
    ours = Encoder(TOKENIZER, max_seq_length=28, prompt=PROMPT)
    plain = Encoder(TOKENIZER, max_seq_length=28 - 7)
    found, without = ours.encode(pairs), plain.encode(pairs)
    prompt = [TOKENIZER.tokens.index(word) for word in PROMPT.replace("It", "it").split()]
    for row, expected in enumerate(lists(without.input_ids)):
        assert lists(found.input_ids)[row] == [expected[0], *prompt, *expected[1:]]
    assert (found.length_a == without.length_a + 7).all()
    assert ours.shortened(pairs) == plain.shortened(pairs)
    assert (ours.mask_position, plain.mask_position) == (6, 0)


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "unigram"])
def test_a_text_has_the_tokens_that_it_has_in_running_text(name):
    tokenizer = TOKENIZERS.get(name, TOKENIZER)
    encoder = Encoder(tokenizer, max_seq_length=64, prompt="it was [MASK] .")
    text = "lamp works good fine bad"
    running = ids_with_masks(f"it was [MASK] . {text}", tokenizer)
    assert lists(encoder.encode([(text,)]).input_ids)[0] == [
        tokenizer.cls_id,
        *running,
        tokenizer.sep_id,
    ]
    [long] = texts = [(f"{text} " * 20,)]
    [kept] = cut = encoder.shortened(texts)
    assert 0 < len(kept[0]) < len(long[0])
    assert long[0].startswith(kept[0])
    assert lists(encoder.encode(cut).input_ids) == lists(encoder.encode(texts).input_ids)


@pytest.mark.parametrize("name", ["bert-tiny", "nano", "modern-mini", "bert-pytorch-base"])
def test_a_new_classifier_of_one_word_a_class_has_the_logits_of_the_masked_lm(name):
    config = narrow(name)
    pretrained = shaken(config).eval()
    model = BertForClassification(config, 2, pooling="mask", mask_position=3).eval()
    weights = pretrained.state_dict()
    load_encoder(model, weights)
    start_at_words(model, weights, [[7], [9]])
    ids = torch.randint(0, config.vocab_size, (3, 12), generator=torch.Generator().manual_seed(0))
    types, mask = torch.zeros_like(ids), torch.arange(12) < torch.tensor([[12], [4], [9]])
    with torch.no_grad():
        logits = pretrained(ids, types, mask, torch.full((3, 1), 3))[0][:, 0, [7, 9]]
        bias = weights.get("mlm_head.bias", torch.zeros(config.vocab_size))[[7, 9]]
        torch.testing.assert_close(model(ids, types, mask), logits - bias)


def test_no_class_is_ahead_of_the_others_before_the_training(folder, tmp_path):
    exactly = {"learning_rate": 1e-12, "dropout": 0.0, "precision": "fp32"}
    config = FinetuneConfig(**{**vars(QUICK), **exactly})
    rows = str(folder / "rows.csv")
    finetune(folder / "run", rows, out=tmp_path / "out", test=rows, config=config)
    classifier = load_classifier(tmp_path / "out")
    logits = np.log(classifier.probabilities(read_texts(rows, text="text", text_pair=None)))
    assert np.ptp(logits[:, 1] - logits[:, 0]) > 1e-4
    assert abs((logits[:, 1] - logits[:, 0]).mean()) < 1e-5


def test_it_learns_is_kept_and_answers_alike_everywhere(folder, tmp_path):
    rows, classifier = folder / "rows.csv", tmp_path / "classifier"
    output_of("finetune", folder / "run", rows, "--out", classifier,
              "--prompt", PROMPT, "--label-words", CLASSES, "--epochs=30", "--learning-rate=1e-2",
              "--label-efficiency=16", "--no-baseline", "--test", rows)  # fmt: skip
    found = load_classifier(classifier)
    wanted = found.probabilities(read_texts(str(rows), text="text", text_pair=None))
    assert ((wanted[:, 1] > 0.5) == (np.arange(40) % 2)).all()
    assert found.encoder.prompt == PROMPT
    assert read_metadata(classifier)["job"]["label_words"] == CLASSES
    output_of("export", classifier, "--format", "onnx", "--out", tmp_path / "onnx")
    values = json.loads((tmp_path / "onnx" / "onnx.json").read_bytes())
    assert values["prompt_ids"] == found.encoder.prompt_ids
    lines = output_of("predict", classifier, "--file", rows, "--json").splitlines()
    probabilities = [json.loads(line)["probabilities"]["yes"] for line in lines]
    np.testing.assert_allclose(probabilities, wanted[:, 1], atol=1e-4)
    texts = read_texts(str(rows), text="text", text_pair=None)
    answers = in_onnxruntime(tmp_path / "onnx", found.encoder.encode(texts))
    np.testing.assert_allclose(answers, wanted, atol=1e-4)


BAD = {
    "--prompt 'it was' has 0 [MASK]; give it one": {"prompt": "it was"},
    "has 2 [MASK]; give it one": {"prompt": "[MASK] was [MASK]"},
    "has 8 tokens; give at most 7, a quarter of --max-seq-length": {"prompt": f"lamp {PROMPT}"},
    "has no words for 'yes', the unknown class '=so'; give words": {"label_words": "no=bad;=so=it"},
    "'lamps', which the vocabulary has only as [UNK]; give a word": {
        "label_words": "no=bad;yes=lamps"
    },
    "'bad poor', which the vocabulary has only as bad poor;": {
        "label_words": "no=bad poor;yes=good"
    },
}


@pytest.mark.parametrize(("message", "changes"), BAD.items())
def test_bad_prompts_and_words_are_one_line_before_anything_is_written(
    folder, tmp_path, message, changes
):
    config = FinetuneConfig(**{**vars(QUICK), **changes})
    with pytest.raises(InputError, match=re.escape(message)):
        finetune(folder / "run", str(folder / "rows.csv"), out=tmp_path / "out", config=config)
    assert not list(tmp_path.iterdir())


def test_a_class_name_may_have_a_semicolon_and_other_marks_of_the_list():
    config = FinetuneConfig(prompt=PROMPT, label_words=r"no\; never=bad,poor;a=b, c=good")
    assert config.words_of_classes == {"no; never": ["bad", "poor"], "a=b, c": ["good"]}


@pytest.mark.parametrize(
    "values",
    [
        {"label_words": "a=b;c=d"},
        {"prompt": " "},
        {"prompt": PROMPT, "label_words": ";"},
        {"prompt": PROMPT, "pooling": "mean"},
        {"prompt": PROMPT, "label_words": "a=b;a=d"},
        {"prompt": PROMPT, "label_words": "a"},
        {"prompt": PROMPT, "label_words": "a=b,"},
    ],
)
def test_options_that_do_not_go_together_are_refused(values):
    with pytest.raises(ValueError, match=r"label_words|pooling|prompt is ' '"):
        FinetuneConfig(**values)
