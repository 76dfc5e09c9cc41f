"""One classifier: its learning rate is searched, it is trained, and it answers the test rows.

    job, ("pretrained", 1000 rows, seed 0)
    ->  folds      trained on some rows with each rate, results on the others   ->  the best trial
    ->  all rows   trained as in the best trial                                 ->  weights
    ->  test rows                                                               ->  logits, scores

The same from random weights ("from_scratch") shows what pretraining is worth. A job whose labels
are numbers gives a model with one output. All processes of a world train the model together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from clozeline.model.heads import BertForClassification, load_encoder
from clozeline.pipeline.common.errors import DivergedError
from clozeline.pipeline.common.progress_bar import ProgressBar, is_watched
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.job import TEST, Job
from clozeline.train.finetuning.results import ModelKey, ModelName, Result
from clozeline.train.finetuning.search import (
    Trial,
    best_of,
    candidate_rates,
    final_split,
    fixed_trial,
    for_all_rows,
    search,
    selection_folds,
)
from clozeline.train.finetuning.training_loop import (
    Labels,
    Logits,
    predict_logits,
    train_classifier,
)
from clozeline.train.labelled.rows import Rows
from clozeline.train.labelled.scores import Correlations, Scores

MOST_CENTRED_ON = 1_024  # training rows whose mean logits classes with words start from
DECODER, EMBEDDINGS = "mlm_head.decoder.weight", "encoder.embeddings.word_embeddings.weight"


def train_model(
    job: Job, key: ModelKey, world: World, first: Result | None = None
) -> tuple[BertForClassification, Result, Logits]:
    """The trained model, its result, and its logits for the test rows, [N, C].

    `first` is the result of another seed, whose choices are taken instead of a search. Raises
    DivergedError if the logits are not finite.
    """
    run = Training(job, key, world)
    count = len(run.labels)
    trial, tried = fixed_trial(job.config, count), tuple[Trial, ...]()
    if first is not None:
        trial, tried = first.chosen, first.tried
    elif trial is None:
        with run.progress("search") as progress:
            evaluate = partial(run.on_held_out_rows, progress=progress)
            tried = tuple(search(evaluate, count, job.config, candidate_rates(job.start.model)))
        trial = for_all_rows(best_of(tried), count, job.config)
    trained, held = final_split(run.labels, seed=job.config.seed)
    with run.progress() as progress:
        model, losses = run.train(trial, trained, progress)
    trial = replace(trial, training_losses=losses)
    if len(held):
        trial = trial.with_results(run.logits(model, held), run.labels[held])
    with run.progress("test rows", unit="row") as progress:
        # In float32, as `clozeline predict` and exported models compute.
        predict = partial(predict_logits, model, world=world, progress=progress)
        answers = {name: predict(encoded) for name, encoded in job.test_rows.items()}
    if not all(np.isfinite(logits).all() for logits in answers.values()):
        raise DivergedError(
            f"fine-tuning diverged at a learning rate of {trial.learning_rate:g}: its logits are "
            "not finite, so there is no classifier. Give a smaller --learning-rate."
        )
    predicted = {name: x.argmax(1) if job.names else x[:, 0] for name, x in answers.items()}
    return model, scored(job, key, predicted, trial, tried), answers[TEST]


class Training:
    """Trainings of one model on parts of its rows."""

    def __init__(self, job: Job, key: ModelKey, world: World) -> None:
        subset = job.subset(key.examples, seed=key.seed)
        self.job, self.key, self.world = job, key, world
        self.rows, self.labels = job.rows.take(subset), job.labels[subset]

    def on_held_out_rows(self, trial: Trial, *, progress: tqdm) -> Trial:
        """The trial with its results over the held-out rows of all folds."""
        folds = selection_folds(self.labels, seed=self.job.config.seed)
        logits = [self.logits(self.train(trial, train, progress)[0], held) for train, held in folds]
        labels = self.labels[np.concatenate([held for _, held in folds])]
        tried = trial.with_results(np.concatenate(logits), labels)
        return self.world.broadcast_from_main(lambda: tried)  # all processes choose the same

    def train(
        self, trial: Trial, chosen: Rows, progress: tqdm
    ) -> tuple[BertForClassification, list[float]]:
        """A model, and its training loss in each epoch."""
        model = new_model(self.job, self.key.start, self.key.seed).to(self.world.device)
        if self.job.label_ids and self.key.start == "pretrained":
            # No class is ahead before the training, however frequent its words are.
            count = min(len(chosen), MOST_CENTRED_ON)
            some = np.linspace(0, len(chosen) - 1, count).astype(np.int64)
            ahead = torch.from_numpy(self.logits(model, chosen[some]).mean(0))
            model.classifier.bias.data -= ahead.to(self.world.device)
        losses = train_classifier(
            model,
            self.rows.take(chosen),
            self.labels[chosen],
            self.job.config,
            learning_rate=trial.learning_rate,
            epochs=trial.epochs,
            seed=self.key.seed,
            progress=progress,
            world=self.world,
        )
        return model, losses

    def logits(self, model: BertForClassification, rows: Rows) -> Logits:
        precision = self.job.config.precision
        return predict_logits(model, self.rows.take(rows), precision=precision, world=self.world)

    def progress(self, part: str | None = None, *, unit: str = "step") -> tqdm:
        """Shown by one of the processes."""
        title = f"{self.key.title}, {part}" if part else self.key.title
        is_shown = self.world.is_main and is_watched()
        return ProgressBar(desc=title, unit=unit, mininterval=0.5, disable=not is_shown)


def scored(
    job: Job,
    key: ModelKey,
    predicted: Mapping[str, Labels],
    trial: Trial | None = None,
    tried: tuple[Trial, ...] = (),
) -> Result:
    """The result of a model from its predictions for each test set, by name."""
    scores: dict[str, Any] = {
        name: Scores.of(job.names, job.test_labels[name], values)
        if job.names
        else Correlations.of(job.test_labels[name], values)
        for name, values in predicted.items()
    }
    return Result(key=key, scores=scores.pop(TEST), also=scores, trial=trial, tried=tried)


def new_model(job: Job, start: ModelName, seed: int) -> BertForClassification:
    """An untrained classifier; what is not pretrained is drawn from the seed."""
    model = BertForClassification(
        job.start.model,
        len(job.names) or 1,
        pooling=job.start.pooling,
        mask_position=job.encoder.mask_position,
        seed=seed,
    )
    if start == "pretrained":
        load_encoder(model, job.start.continued_weights)
        start_at_words(model, job.start.weights, job.label_ids)
    return model


@torch.no_grad()
def start_at_words(
    model: BertForClassification, weights: Mapping[str, Tensor], label_ids: Sequence[list[int]]
) -> None:
    """Let the weights of each class be the mean of the decoder's rows for its words, if any."""
    table = weights.get(DECODER, weights[EMBEDDINGS])
    for label, ids in enumerate(label_ids):
        model.classifier.weight[label] = table[ids].mean(0)
