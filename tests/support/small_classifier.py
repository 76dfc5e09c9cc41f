"""A classifier folder with random weights and the report of a real one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from clozeline.model.heads import BertForClassification
from clozeline.train.artifacts.classifier_folder import predictions_csv
from clozeline.train.finetuning.classifier import Classifier, save_classifier
from clozeline.train.finetuning.results import (
    FinetuneReport,
    ModelKey,
    ModelName,
    Result,
    report_of,
)
from clozeline.train.finetuning.search import Trial
from clozeline.train.labelled.encoding import Encoder
from clozeline.train.labelled.scores import Scores
from tests.support.small import small_tokenizer
from tests.support.small_training import STILL

#: The 100 test rows of the report; the second and the third are wrong.
PREDICTED = predictions_csv(
    ("bad", "<b>good</b>"),
    np.array([1, 0, 1] + 97 * [1]),
    np.array([[0.25, 0.75], [0.125, 0.875], [1.0, 0.0]] + 97 * [[0.25, 0.75]]),
    ["the cat", '<script>"a",\nb', "long " * 300] + 97 * ["the cat"],
)
TRIAL = Trial(
    **{"learning_rate": 1e-3, "epochs": 6, "training_losses": [0.7, 0.6, 0.5, 0.4, 0.3, 0.2]},
    **{"rows": 200, "accuracy": 0.8, "loss": 0.5},
)


def result(start: ModelName, examples: int, seed: int, right: int) -> Result:
    """So many of 100 test rows are right, and one fewer of another test set."""
    is_trained = start != "bag_of_words"
    return Result(
        key=ModelKey(start, examples, seed),
        scores=Scores(("bad", "good"), np.array([[right - 40, 60 - right + 40], [0, 40]])),
        also={"imdb": Scores(("bad", "good"), np.array([[right - 41, 101 - right], [0, 40]]))},
        trial=TRIAL if is_trained else None,
        tried=(TRIAL,) if is_trained else (),
    )


def report(sizes: Sequence[int] = (100, 1000)) -> FinetuneReport:
    """Of models of two seeds and bag-of-words, trained on so many rows."""
    results = [
        *(result("bag_of_words", n, 0, 70) for n in sizes),
        *(result("from_scratch", n, seed, 60 + 2 * seed) for n in sizes for seed in (0, 1)),
        *(result("pretrained", n, seed, 80 + 4 * seed) for n in sizes for seed in (0, 1)),
    ]
    values = {
        **{"run": "r", "train": "a.csv", "test": "b.csv"},
        **report_of(results, results[-1]),
        "class_counts": {"bad": 500, "good": 500},
        "notes": ["something to know"],
    }
    return FinetuneReport(values)


def write_small_classifier(
    folder: Path, *, text_pair: str | None = None, sizes: Sequence[int] = (100, 1000)
) -> Path:
    """Two classes, "bad" and "<b>good</b>"; the word "cat" alone decides which."""
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    model = BertForClassification(STILL, 2, pooling="mean")
    with torch.no_grad():
        embeddings = model.encoder.embeddings.word_embeddings.weight
        embeddings[tokenizer.tokens.index("cat")] *= 50
    classifier = Classifier(
        model=model,
        encoder=Encoder(tokenizer, max_seq_length=16),
        names=("bad", "<b>good</b>"),
        text="text",
        text_pair=text_pair,
    )
    save_classifier(
        folder,
        classifier,
        job={"<script>": "1"},
        report=report(sizes).values,
        predictions=PREDICTED,
    )
    return folder
