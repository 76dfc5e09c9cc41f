"""Trains and tests the compared models on the same rows, truncated at the same token.

    pretrained       fine-tuned from the pretrained weights
    from_scratch     the same model and the same search, from random weights
    bag_of_words     TF-IDF and logistic regression, or ridge regression for numbers

Smaller training sets are balanced and nested in larger ones; the first seed's search decides the
learning rate for all seeds. The numbers of a regression are standardized for training, which
changes no correlation.
"""

from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozeline.model.heads import BertForClassification
from clozeline.pipeline.common.progress_bar import print_progress
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.hyperparameters import Selection
from clozeline.train.finetuning.job import TEST, Job
from clozeline.train.finetuning.one_model import ModelTrainer
from clozeline.train.finetuning.results import ModelKey, ModelResult, ResultStore, Start
from clozeline.train.finetuning.training_loop import Labels, Logits, predict_logits
from clozeline.train.labelled.baseline import fit_bag_of_words
from clozeline.train.labelled.rows import Labelled, Rows, Texts, balanced_order, class_ids
from clozeline.train.labelled.scores import Correlations, Scores


class ComparedModels:
    """Trains the compared models on the rows of a job; tests them on its named test sets."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self._config = job, job.config
        self.rows, self.labels = job.encoder.encode(job.train.texts), self._labels(job.train)
        if not job.names:
            deviation = self.labels.std() or np.float32(1)
            self.labels = (self.labels - self.labels.mean()) / deviation
        self.test_rows = {name: job.encoder.encode(test.texts) for name, test in job.tests.items()}
        self.test_labels = {name: self._labels(test) for name, test in job.tests.items()}
        self._trainers = {
            is_pretrained: ModelTrainer(
                start=job.start,
                is_pretrained=is_pretrained,
                outputs=len(job.names) or 1,
                mask_position=job.encoder.mask_position,
                label_ids=job.label_ids if is_pretrained else (),
                config=job.config,
                device=device,
            )
            for is_pretrained in (True, False)
        }

    def keys(self) -> list[ModelKey]:
        """Every model to train, in order; candidates for the classifier come last."""
        config, total = self._config, len(self.labels)
        starts: list[Start] = ["bag_of_words"] if config.baseline and find_spec("sklearn") else []
        starts += ["from_scratch"] if config.has_from_scratch else []
        return [
            ModelKey(start=start, examples=size, seed=seed)
            for size in config.sizes(total)
            for start in (*starts, "pretrained")
            for seed in config.all_seeds
            # On all rows bag-of-words does not depend on the seed.
            if seed == config.seed or size < total or start != "bag_of_words"
        ]

    def logits(self, model: BertForClassification, name: str) -> Logits:
        """The model's logits for the test set of this name, [N, C]."""
        return predict_logits(model, self.test_rows[name], precision=self._config.precision)

    def model_of(self, weights: dict[str, Tensor]) -> BertForClassification:
        model = self._trainers[True].new_model(self._config.seed)
        model.load_state_dict(weights)
        return model

    def is_candidate(self, key: ModelKey) -> bool:
        is_whole = key.examples == len(self.labels)
        return bool(self.job.names) and key.start == "pretrained" and is_whole

    def train(
        self, key: ModelKey, first: ModelResult[Any] | None
    ) -> tuple[ModelResult[Any], BertForClassification | None]:
        """Train and test one model; `first` is the first seed's result, if this is another seed."""
        rows = self._subset(key)
        if key.start == "bag_of_words":
            predict = fit_bag_of_words(
                self._truncated[""].take(rows).joined(),
                self.labels[rows],
                is_balanced=self._config.class_weights == "balanced",
                source=self.job.train.source,
            )
            predicted = {name: predict(self._truncated[name].joined()) for name in self.test_rows}
            return self._result(key, predicted, None), None
        model, selection = self._trainers[key.start == "pretrained"].train(
            self.rows.take(rows),
            self.labels[rows],
            seed=key.seed,
            title=key.title,
            chosen=first.selection if first else None,
            is_candidate=self.is_candidate(key),
        )
        logits = {name: self.logits(model, name) for name in self.test_rows}
        predicted = {
            name: found.argmax(1) if self.job.names else found[:, 0]
            for name, found in logits.items()
        }
        return self._result(key, predicted, selection), model

    def _labels(self, rows: Labelled) -> Labels:
        if self.job.names:
            return class_ids(rows, self.job.names)
        return np.array(rows.labels, dtype=np.float32)

    def _result(
        self, key: ModelKey, predicted: dict[str, Labels], selection: Selection | None
    ) -> ModelResult[Any]:
        scores: dict[str, Any] = {
            name: Scores.of(self.job.names, self.test_labels[name], found)
            if self.job.names
            else Correlations.of(self.test_labels[name], found)
            for name, found in predicted.items()
        }
        return ModelResult(key=key, scores=scores.pop(TEST), also=scores, selection=selection)

    def _subset(self, key: ModelKey) -> Rows:
        if not self.job.names:
            return np.arange(key.examples)
        return balanced_order(self.labels, seed=key.seed)[: key.examples]

    @cached_property
    def _truncated(self) -> dict[str, Texts]:
        """What the model reads of each text: of the training rows "", and of each test set."""
        texts = {"": self.job.train.texts} | {n: t.texts for n, t in self.job.tests.items()}
        return {name: self.job.encoder.truncate(found) for name, found in texts.items()}


def train_all(compared: ComparedModels, store: ResultStore, world: World) -> list[ModelResult[Any]]:
    """Train what is not stored yet, and store it; returns all results.

    With several processes, each trains some of the models and reads the others from the store.
    """
    keys = compared.keys()
    first_seed, parts = keys[0].seed, [keys]
    if world.size > 1:  # the other seeds need the first one's selections, of all processes
        parts = [[k for k in keys if (k.seed == first_seed) is first] for first in (True, False)]
    results: dict[ModelKey, ModelResult[Any]] = {}
    for part in parts:
        for key in share_of(part, world):
            is_candidate = compared.is_candidate(key)
            result = store.read(key, with_weights=is_candidate)
            if result is None:
                result, model = compared.train(key, results.get(replace(key, seed=first_seed)))
                store.write(result, model.state_dict() if model and is_candidate else None)
                print_progress(result.line())
            results[key] = result
        world.wait()
        results |= {key: store.read_other(key) for key in part if key not in results}
    return [results[key] for key in keys]


def share_of(keys: list[ModelKey], world: World) -> list[ModelKey]:
    """This process's part of the models: the largest are dealt first and trained last."""
    return keys[::-1][world.rank :: world.size][::-1]
