"""One classifier: its learning rate is searched, it is trained, and it answers the test rows.

    job, ("pretrained", 1000 rows, seed 0)
    ->  folds      trained on some rows with each rate, results on the others   ->  the best trial
    ->  all rows   trained as in the best trial                                 ->  weights
    ->  test rows                                                               ->  logits, scores

The same from random weights ("from_scratch") shows what pretraining is worth. A job whose labels
are numbers gives a model with one output. All processes of a world train the model together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from clozeline.model.heads import BertForClassification, load_encoder
from clozeline.pipeline.common.errors import DivergedError
from clozeline.pipeline.common.progress_bar import ProgressBar, is_watched
from clozeline.train.engine.distributed import World, to_device
from clozeline.train.engine.optim import new_optimizer
from clozeline.train.engine.precision import (
    autocast,
    compiled,
    products_dtype,
    resolve_compile,
    resolve_precision,
    seed_dropout,
)
from clozeline.train.engine.schedule import schedule_factor
from clozeline.train.finetuning.config import Auto, FinetuneConfig
from clozeline.train.finetuning.job import TEST, FinetuneJob
from clozeline.train.finetuning.results import ModelKey, Result
from clozeline.train.finetuning.search import (
    Trial,
    candidate_rates,
    final_split,
    search,
    selection_folds,
)
from clozeline.train.labelled.encoding import Encoded, evaluation_batches, training_batches
from clozeline.train.labelled.rows import Labels, Logits, Rows
from clozeline.train.labelled.scores import Correlations, Scores

CLIP = 1.0  # maximum gradient norm
BETAS = (0.9, 0.98)  # of AdamW
LARGEST_BATCH, SMALLEST_BATCH, FEWEST_STEPS = 32, 8, 8  # where the batch size is auto
MOST_CENTRED_ON = 1_024  # training rows whose mean logits classes with words start from
DECODER, EMBEDDINGS = "mlm_head.decoder.weight", "encoder.embeddings.word_embeddings.weight"


def train_model(
    job: FinetuneJob, key: ModelKey, world: World, first: Result | None = None
) -> tuple[BertForClassification, Result, Logits]:
    """The trained model, its result, and its logits for the test rows, [N, C].

    `first` is the result of another seed, whose choices are taken instead of a search. Raises
    DivergedError if the weights or logits are not finite.
    """
    run = Training(job, key, world)
    if first is not None:
        trial, tried = first.chosen, first.tried
    else:
        rates = candidate_rates(job.start.model)
        trial, tried = search(run.on_held_out_rows, len(run.labels), job.config, rates)
    trained, held = final_split(run.labels, seed=job.config.seed)
    is_compiled = resolve_compile(job.config.compile and len(held) > 0, world)
    with run.progress() as progress:
        model, losses = run.train(trial, trained, progress, is_compiled=is_compiled)
    trial = replace(trial, training_losses=losses)
    if len(held):
        trial = trial.with_results(run.logits(model, held), run.labels[held])
    with run.progress("test rows", unit="row") as progress:
        # Of this process; the others answer as many.
        progress.total = sum(len(table.rows) for table in job.tests.values()) // world.size
        # In float32, as `clozeline predict` and exported models compute.
        predict = partial(predict_logits, model, world=world, progress=progress)
        answers = {name: predict(table.rows) for name, table in job.tests.items()}
    is_finite = all(weights.isfinite().all() for weights in model.state_dict().values())
    if not (is_finite and all(np.isfinite(logits).all() for logits in answers.values())):
        raise DivergedError(
            f"fine-tuning diverged at a learning rate of {trial.learning_rate:g}: its weights or "
            "logits are not finite, so there is no classifier. Give a smaller --learning-rate."
        )
    predicted = {name: x.argmax(1) if job.names else x[:, 0] for name, x in answers.items()}
    return model, scored(job, key, predicted, trial, tried), answers[TEST]


class Training:
    """Trainings of one model on parts of its rows."""

    def __init__(self, job: FinetuneJob, key: ModelKey, world: World) -> None:
        subset = job.subset(key.examples, seed=key.seed)
        self.job, self.key, self.world = job, key, world
        self.rows, self.labels = job.train.rows.take(subset), job.train.labels[subset]

    def on_held_out_rows(self, trial: Trial) -> Trial:
        """The trial with its results over the held-out rows of all folds."""
        folds = selection_folds(self.labels, seed=self.job.config.seed)
        with self.progress(f"rate {trial.learning_rate:g}") as progress:
            logits = [
                self.logits(self.train(trial, train, progress)[0], held) for train, held in folds
            ]
        labels = self.labels[np.concatenate([held for _, held in folds])]
        tried = trial.with_results(np.concatenate(logits), labels)
        return self.world.broadcast_from_main(lambda: tried)  # all processes choose the same

    def train(
        self, trial: Trial, chosen: Rows, progress: tqdm, *, is_compiled: bool = False
    ) -> tuple[BertForClassification, list[float]]:
        """A model, and its training loss in each epoch."""
        model = new_model(self.job, self.key).to(self.world.device)
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
            trial=trial,
            seed=self.key.seed,
            progress=progress,
            world=self.world,
            is_compiled=is_compiled,
        )
        return model, losses

    def logits(self, model: BertForClassification, rows: Rows) -> Logits:
        precision = self.job.config.precision
        return predict_logits(model, self.rows.take(rows), precision=precision, world=self.world)

    def progress(self, part: str = "", *, unit: str = "step") -> tqdm:
        """Shown by one of the processes."""
        title = f"{self.key.title}, {part}" if part else self.key.title
        is_shown = self.world.is_main and is_watched()
        return ProgressBar(desc=title, unit=unit, mininterval=0.5, disable=not is_shown)


def scored(
    job: FinetuneJob,
    key: ModelKey,
    predicted: Mapping[str, Labels],
    trial: Trial | None = None,
    tried: Sequence[Trial] = (),
) -> Result:
    """The result of a model from its predictions for each test set, by name."""
    score: Callable[..., Any] = partial(Scores.of, job.names) if job.names else Correlations.of
    scores = {name: score(job.tests[name].labels, values) for name, values in predicted.items()}
    return Result(key=key, scores=scores.pop(TEST), also=scores, trial=trial, tried=tried)


def new_model(job: FinetuneJob, key: ModelKey) -> BertForClassification:
    """An untrained classifier; what is not pretrained is drawn from the seed."""
    model = BertForClassification(
        job.start.model,
        len(job.names) or 1,
        pooling=job.start.pooling,
        mask_position=job.train.encoder.mask_position,
        seed=key.seed,
    )
    if key.start == "pretrained":
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


def train_classifier(
    model: BertForClassification,
    rows: Encoded,
    labels: Labels,
    config: FinetuneConfig,
    *,
    trial: Trial,
    seed: int,
    progress: tqdm,
    world: World,
    is_compiled: bool = False,
) -> list[float]:
    """Train in place, on the model's device; `progress` is reset, and has one tick per step.

    Returns the mean loss of the rows in each epoch, with dropout. The learning rate warms up to
    that of the trial and decays to 0 over its epochs. The loss is cross-entropy for classes and
    squared error for real numbers (float `labels`). The order of rows depends on the seed only, and
    so does dropout in one process. Processes share the rows of a step, and end with equal weights.
    """
    device = model.classifier.weight.device
    precision = resolve_precision(config.precision, device)
    decay, dtype = config.weight_decay, products_dtype(world)
    optimizer = new_optimizer(model, config.optimizer, decay=decay, betas=BETAS, dtype=dtype)
    size, lengths = rows_per_step(len(rows), config.batch_size), rows.input_ids.lengths
    epoch_batches = partial(training_batches, lengths, batch_size=size, seed=seed)
    batches = [batch for epoch in range(trial.epochs) for batch in epoch_batches(epoch=epoch)]
    losses = torch.zeros(trial.epochs, device=device)
    progress.reset(len(batches))
    called = compiled(model.train()) if is_compiled else model.train()
    for step, batch in enumerate(batches):
        seed_dropout(seed, step, world.rank)
        # Progress at mid-step, so that the first and the last step have a rate above 0.
        done = (step + 0.5) / len(batches)
        factor = schedule_factor(done, warmup=config.warmup, schedule="linear")
        for group in optimizer.param_groups:
            group["lr"] = trial.learning_rate * factor
        own = batch[world.rank :: world.size]
        if len(own):
            with autocast(precision, device):
                logits = called(*(to_device(tensor, device) for tensor in rows.inputs(own)))
            loss = loss_sum(logits.float(), to_device(torch.from_numpy(labels[own]), device))
            (loss / len(batch)).backward()
            losses[step * trial.epochs // len(batches)] += loss.detach()
        _update(model, optimizer, world)
        progress.update()
    if is_compiled:  # versions of all models count towards torch's limit
        torch.compiler.reset()
    for parameter in model.parameters():  # processors may round differently
        world.broadcast(parameter.detach())
    return [loss / len(rows) for loss in world.sum(losses).tolist()]


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
    """A step along the clipped sum of the processes' gradients, which are dropped then."""
    _sum_gradients(model, world)
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _sum_gradients(model: nn.Module, world: World) -> None:
    """Let each gradient be its sum over the processes; one without a row of a step has zeros.

    DistributedDataParallel waits for a backward pass of each process.
    """
    if world.size == 1:
        return
    for parameter in model.parameters():
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = world.sum(own.contiguous())


def rows_per_step(rows: int, batch_size: int | Auto) -> int:
    """With auto 32, or an eighth of fewer than 256 rows, so that an epoch has some steps."""
    if batch_size != "auto":
        return batch_size
    return max(SMALLEST_BATCH, min(LARGEST_BATCH, rows // FEWEST_STEPS))


@torch.no_grad()
def predict_logits(
    model: BertForClassification,
    rows: Encoded,
    *,
    precision: str = "fp32",
    world: World | None = None,
    progress: tqdm | None = None,
) -> Logits:
    """The logits of each class for each row, [N, C], in row order; one tick per own row.

    The processes of a `world` share the batches; each returns all logits.
    """
    device, was_training = model.classifier.weight.device, model.training
    if was_training:  # a redundant call costs half a millisecond
        model.eval()
    world = world or World(0, 1, device)
    all_logits = np.zeros((len(rows), model.classifier.out_features), dtype=np.float32)
    for batch, inputs in evaluation_batches(rows, device, rank=world.rank, ranks=world.size):
        with autocast(resolve_precision(precision, device), device):
            logits = model(*(to_device(tensor, device) for tensor in inputs))
        all_logits[batch] = logits.float().cpu().numpy()
        if progress is not None:
            progress.update(len(batch))
    if was_training:
        model.train()
    if world.size > 1:
        all_logits = world.sum(torch.from_numpy(all_logits).to(device)).cpu().numpy()
    return all_logits


def loss_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of outputs [B, C] for targets [B], classes or real numbers."""
    if targets.is_floating_point():
        return F.mse_loss(outputs[:, 0], targets, reduction="sum")
    return F.cross_entropy(outputs, targets, reduction="sum")
