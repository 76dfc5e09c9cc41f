"""Trains and tests the compared models on the same rows, truncated at the same token.

    pretrained       fine-tuned from the pretrained weights
    from_scratch     the same model and the same search, from random weights
    bag_of_words     TF-IDF and logistic regression, or ridge regression for numbers

Smaller training sets are balanced and nested in larger ones; the first seed's search decides the
learning rate for all seeds. The numbers of a regression are standardized for training, which
changes no correlation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np
import torch

from clozeline.model.heads import BertForClassification
from clozeline.pipeline.common.progress_bar import print_progress
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.hyperparameters import Selection
from clozeline.train.finetuning.job import TEST, Job
from clozeline.train.finetuning.one_model import ModelTrainer
from clozeline.train.finetuning.results import (
    Candidate,
    ModelKey,
    ModelResult,
    ResultStore,
    Start,
)
from clozeline.train.finetuning.training_loop import Labels, Logits
from clozeline.train.labelled.baseline import fit_bag_of_words
from clozeline.train.labelled.rows import Labelled, Rows, Texts, balanced_order, class_ids
from clozeline.train.labelled.scores import Correlations, Scores


class ComparedModels:
    """Trains the compared models on the rows of a job; tests them on its named test sets."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self._config, self._device = job, job.config, device
        self.rows, self.labels = job.encoder.encode(job.train.texts), self._labels(job.train)
        if not job.names:
            deviation = self.labels.std() or 1.0
            self.labels = ((self.labels - self.labels.mean()) / deviation).astype(np.float32)
        self.test_rows = {name: job.encoder.encode(test.texts) for name, test in job.tests.items()}
        self.test_labels = {name: self._labels(test) for name, test in job.tests.items()}

    def keys(self) -> list[ModelKey]:
        """Every model to train, in the order of the report."""
        config, total = self._config, len(self.labels)
        starts: list[Start] = ["bag_of_words"] if config.baseline and find_spec("sklearn") else []
        starts += ["from_scratch"] if config.from_scratch or config.label_efficiency else []
        return [
            ModelKey(start=start, examples=size, seed=seed)
            for size in config.sizes(total)
            for start in (*starts, "pretrained")
            for seed in config.all_seeds
            # On all rows bag-of-words does not depend on the seed.
            if seed == config.seed or size < total or start != "bag_of_words"
        ]

    def restored(self, candidate: Candidate) -> tuple[BertForClassification, Logits]:
        """The model of a candidate, and its logits for the test rows, [N, C]."""
        trainer = self._trainer("pretrained", World(0, 1, self._device))
        model = trainer.new_model(self._config.seed)
        model.load_state_dict(candidate.weights)
        return model, candidate.logits

    def is_candidate(self, key: ModelKey) -> bool:
        is_whole = key.examples == len(self.labels)
        return bool(self.job.names) and key.start == "pretrained" and is_whole

    def renamed(self, result: ModelResult[Any]) -> ModelResult[Any]:
        """With the present sources of the other test sets, which had others before they moved."""
        names = (name for name in self.test_rows if name != TEST)
        return replace(result, also=dict(zip(names, result.also.values(), strict=True)))

    def train(
        self, key: ModelKey, first: ModelResult[Any] | None, world: World
    ) -> tuple[ModelResult[Any], Candidate | None]:
        """Train and test one model, with all processes of the world.

        `first` is the first seed's result, if this is another seed.
        """
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
        trainer = self._trainer(key.start, world)
        model, selection = trainer.train(
            self.rows.take(rows),
            self.labels[rows],
            seed=key.seed,
            title=key.title,
            chosen=first.selection if first else None,
            is_candidate=self.is_candidate(key),
        )
        logits = trainer.test_logits(model, self.test_rows, title=key.title)
        predicted = {
            name: found.argmax(1) if self.job.names else found[:, 0]
            for name, found in logits.items()
        }
        candidate = Candidate(model.state_dict(), logits[TEST]) if self.is_candidate(key) else None
        return self._result(key, predicted, selection), candidate

    def _trainer(self, start: Start, world: World) -> ModelTrainer:
        job, is_pretrained = self.job, start == "pretrained"
        return ModelTrainer(
            start=job.start,
            is_pretrained=is_pretrained,
            outputs=len(job.names) or 1,
            mask_position=job.encoder.mask_position,
            label_ids=job.label_ids if is_pretrained else (),
            config=job.config,
            world=world,
        )

    def _labels(self, rows: Labelled) -> Labels:
        if self.job.names:
            return class_ids(rows, self.job.names)
        return np.array(rows.labels, dtype=np.float64)  # float32 would make 2,000,000,001 even

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
        # All rows have one order, so that all seeds hold the same ones out.
        is_whole = key.examples == len(self.labels)
        order = balanced_order(self.labels, seed=self._config.seed if is_whole else key.seed)
        return order[: key.examples]

    @cached_property
    def _truncated(self) -> dict[str, Texts]:
        """What the model reads of each text: of the training rows "", and of each test set."""
        texts = {"": self.job.train.texts} | {n: t.texts for n, t in self.job.tests.items()}
        return {name: self.job.encoder.truncate(found) for name, found in texts.items()}


def train_all(compared: ComparedModels, store: ResultStore, world: World) -> list[ModelResult[Any]]:
    """Train what is not stored yet, and store it; returns all results.

    Several processes train models side by side, or a model together, and read the results of
    others from the store.
    """
    keys = compared.keys()

    def stored() -> dict[ModelKey, ModelResult[Any]]:
        found = {key: store.read(key, with_weights=compared.is_candidate(key)) for key in keys}
        return {key: compared.renamed(result) for key, result in found.items() if result}

    results, first_seed = world.broadcast_from_main(stored), keys[0].seed
    left = [key for key in keys if key not in results]
    for models in rounds(left, world.size, first_seed=first_seed):
        with _own_part(models, world) as (key, team):
            if key is not None:
                first = results.get(replace(key, seed=first_seed))
                result, candidate = compared.train(key, first, team)
                if team.is_main:
                    store.write(result, candidate)
                    print_progress(result.line())
        world.wait()
        results |= {key: store.read_finished(key) for key in models}
    return [results[key] for key in keys]


@contextmanager
def _own_part(models: list[ModelKey], world: World) -> Iterator[tuple[ModelKey | None, World]]:
    """The model of the round that this process trains, if any, and the processes that train it."""
    if models[0].start == "bag_of_words":  # fitted by one process
        own = models[world.rank] if world.rank < len(models) else None
        yield own, World(0, 1, world.device)
        return
    with world.split(len(models)) as (index, team):
        yield models[index], team


def rounds(keys: Sequence[ModelKey], processes: int, *, first_seed: int) -> list[list[ModelKey]]:
    """The models that are trained at the same time, round after round.

    As many as there are processes, or fewer, which then share the processes: models of one size,
    which take equally long. Other seeds follow the first one, whose selections they need. Bags of
    words come before all others, and have one process each.
    """

    def kind(key: ModelKey) -> tuple[int, bool]:
        is_bag = key.start == "bag_of_words"
        return (0, False) if is_bag else (key.examples, key.seed != first_seed)

    alike = [list(found) for _, found in groupby(sorted(keys, key=kind), kind)]
    return [found[i : i + processes] for found in alike for i in range(0, len(found), processes)]
