"""The training of a classifier, and of those it is compared with.

Each of them reads the same rows, cut at the same token: a pretrained encoder, the same model
started from random weights, bag-of-words.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from model.heads import BertForClassification, load_encoder
from train.artifacts.pretrained import Pretrained
from train.engine.optim import adamw, set_learning_rate
from train.engine.precision import autocast, seed_dropout
from train.engine.schedule import schedule_factor
from train.finetuning.baseline import bag_of_words, has_sklearn
from train.finetuning.classifier import class_probabilities
from train.finetuning.config import FinetuneConfig
from train.finetuning.encoding import Encoded, Encoder, training_batches
from train.finetuning.labelled import Labelled, Rows, class_ids
from train.finetuning.report import ModelScores
from train.finetuning.scores import Scores


def train_classifier(
    model: BertForClassification,
    rows: Encoded,
    labels: Rows,
    config: FinetuneConfig,
    *,
    title: str,
) -> None:
    """Train on the model's device, showing how far it is under a title.

    Dropout and the order of rows follow from the seed alone.
    """
    device = model.classifier.weight.device
    optimizer = adamw(
        model,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        betas=(0.9, 0.98),
    )
    lengths, classes = rows.input_ids.lengths, torch.from_numpy(labels)
    batches = [
        batch
        for epoch in range(config.epochs)
        for batch in training_batches(
            lengths, batch_size=config.batch_size, seed=config.seed, epoch=epoch
        )
    ]
    model.train()
    for step, batch in enumerate(_progress(batches, title)):
        seed_dropout(config.seed, step, 0)
        # In the middle of the step: the first and the last one count also where they are all.
        factor = schedule_factor(
            (step + 0.5) / len(batches), warmup=config.warmup, schedule="linear"
        )
        set_learning_rate(optimizer, config.learning_rate * factor)
        with autocast(config.precision, device):
            logits = model(*(tensor.to(device) for tensor in rows.inputs(batch)))
        loss = F.cross_entropy(logits.float(), classes[batch].to(device))
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class ComparedModels:
    """Those who are compared, on one set of test rows."""

    def __init__(
        self,
        start: Pretrained,
        test: Labelled,
        names: tuple[str, ...],
        config: FinetuneConfig,
        device: torch.device,
    ) -> None:
        self.names = names
        self._start, self._config, self._device = start, config, device
        self._encoder = Encoder(start.tokenizer, max_seq_length=start.max_seq_length)
        self._test = test
        self._test_rows = self._encoder.encode(test.texts)
        self._test_classes = class_ids(test, names)

    def compare(self, train: Labelled) -> tuple[ModelScores, BertForClassification]:
        """Train each of them on the same rows; also gives the fine-tuned model."""
        size = f"{len(train):,} rows"
        bag = self._bag_of_words(train) if self._config.baseline and has_sklearn() else None
        finetuned, model = self._fit(train, self._start.weights, f"fine-tuning on {size}")
        scratch = None
        if self._config.from_scratch:
            scratch, _ = self._fit(train, None, f"without pretraining, {size}")
        standing = ModelScores(
            examples=len(train), finetuned=finetuned, from_scratch=scratch, bag_of_words=bag
        )
        return standing, model

    def _fit(
        self, train: Labelled, weights: Mapping[str, Tensor] | None, title: str
    ) -> tuple[Scores, BertForClassification]:
        config = self._config
        start = self._start
        model = BertForClassification(
            start.model, len(self.names), pooling=start.pooling, seed=config.seed
        )
        if weights is not None:
            load_encoder(model, weights)
        model.to(self._device)
        classes = class_ids(train, self.names)
        train_classifier(model, self._encoder.encode(train.texts), classes, config, title=title)
        predicted = class_probabilities(model, self._test_rows).argmax(1)
        return Scores.of(self.names, self._test_classes, predicted), model

    def _bag_of_words(self, train: Labelled) -> Scores:
        train, test = (
            replace(rows, texts=self._encoder.truncate(rows.texts)) for rows in (train, self._test)
        )
        return bag_of_words(train, test, self.names)


def _progress(batches: list[Rows], title: str) -> tqdm:
    interval = 0.5 if sys.stderr.isatty() else 15.0
    return tqdm(batches, desc=title, unit="step", file=sys.stderr, mininterval=interval)
