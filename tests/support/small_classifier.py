"""A classifier folder with random weights and the report of a real one."""

from pathlib import Path

import torch

from clozeline.model.heads import BertForClassification
from clozeline.train.finetuning.classifier import Classifier, save_classifier
from clozeline.train.labelled.predictions import PREDICTIONS
from tests.support.small import small_tokenizer
from tests.support.small_training import STILL
from tests.test_classifier_report import PREDICTED, report


def write_small_classifier(folder: Path, *, text_pair: str | None = None) -> Path:
    """Two classes, "bad" and "<b>good</b>"; the word "cat" alone decides which."""
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    model = BertForClassification(STILL, 2, pooling="mean")
    with torch.no_grad():
        embeddings = model.encoder.embeddings.word_embeddings.weight
        embeddings[tokenizer.tokens.index("cat")] *= 50
    classifier = Classifier(
        model=model,
        tokenizer=tokenizer,
        names=("bad", "<b>good</b>"),
        text="text",
        text_pair=text_pair,
        max_seq_length=16,
    )
    save_classifier(
        folder,
        classifier,
        job={"<script>": "1"},
        report=report().to_dict(),
        files={PREDICTIONS: PREDICTED.csv().encode()},
    )
    return folder
