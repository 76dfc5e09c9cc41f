"""Training of one classifier: linear warm-up and decay, dropout drawn from the seed."""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from clozeline.model.heads import BertForClassification
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import MuonWithAdamW, is_hidden_matrix
from clozeline.train.engine.precision import (
    autocast,
    products_dtype,
    resolve_precision,
    seed_dropout,
)
from clozeline.train.engine.replicas import same_weights, sum_gradients
from clozeline.train.engine.schedule import schedule_factor
from clozeline.train.finetuning.config import Auto, FinetuneConfig
from clozeline.train.labelled.encoding import Encoded, evaluation_batches, training_batches

CLIP = 1.0  # maximum gradient norm
LARGEST_BATCH, SMALLEST_BATCH, FEWEST_STEPS = 32, 8, 8  # where the batch size is auto

Logits = NDArray[np.float32]  # [N, C]
Labels = NDArray[Any]  # [N], int64 classes, or float32 targets of a regression


def train_classifier(
    model: BertForClassification,
    rows: Encoded,
    labels: Labels,
    config: FinetuneConfig,
    *,
    learning_rate: float,
    epochs: int,
    seed: int,
    progress: tqdm,
    world: World,
) -> list[float]:
    """Train in place, on the model's device; one tick of `progress` per step.

    Returns the mean loss of the rows in each epoch, with dropout. The learning rate warms up to
    `learning_rate` and decays to 0 over the epochs. The loss is cross-entropy for classes and
    squared error for real numbers (float `labels`). The order of rows depends on the seed only, and
    so does dropout in one process. The processes of the world share the rows of each step, and end
    with the same weights.
    """
    device = model.classifier.weight.device
    precision = resolve_precision(config.precision, device)
    optimizer = build_optimizer(model, config, world)
    targets = torch.from_numpy(labels)
    size, lengths = rows_per_step(len(rows), config.batch_size), rows.lengths
    epoch_batches = partial(training_batches, lengths, batch_size=size, seed=seed)
    batches = [batch for epoch in range(epochs) for batch in epoch_batches(epoch=epoch)]
    losses = torch.zeros(epochs, device=device)
    model.train()
    for step, batch in enumerate(batches):
        seed_dropout(seed, step, world.rank)
        # Progress at mid-step, so that the first and the last step have a rate above 0.
        done = (step + 0.5) / len(batches)
        factor = schedule_factor(done, warmup=config.warmup, schedule="linear")
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * factor
        own = batch[world.rank :: world.size]
        if len(own):
            with autocast(precision, device):
                logits = model(*(tensor.to(device) for tensor in rows.inputs(own)))
            loss = loss_sum(logits.float(), targets[own].to(device))
            (loss / len(batch)).backward()
            losses[step * epochs // len(batches)] += loss.detach()
        sum_gradients(model, world)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress.update()
    same_weights(model, world)
    return [loss / len(rows) for loss in world.sum(losses).tolist()]


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
    """The logits of each class for each row, [N, C], in row order; one tick per row.

    The processes of a `world` share the batches; each returns all logits.
    """
    device, was_training = model.classifier.weight.device, model.training
    if was_training:  # a redundant call costs half a millisecond
        model.eval()
    world = world or World(0, 1, device)
    all_logits = np.zeros((len(rows), model.classifier.out_features), dtype=np.float32)
    for batch, inputs in evaluation_batches(rows, device, rank=world.rank, ranks=world.size):
        with autocast(resolve_precision(precision, device), device):
            logits = model(*(tensor.to(device) for tensor in inputs))
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


def build_optimizer(
    model: BertForClassification, config: FinetuneConfig, world: World
) -> torch.optim.Optimizer:
    """AdamW, or Muon with AdamW. Norms and biases have no weight decay."""
    matrices: dict[float, dict[str, Any]] = {}
    rest: dict[float, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        is_muons = config.optimizer == "muon" and is_hidden_matrix(name, parameter)
        group = {"params": [], "lr": 0.0, "weight_decay": decay}
        groups = matrices if is_muons else rest
        groups.setdefault(decay, group)["params"].append(parameter)
    adamw = torch.optim.AdamW(list(rest.values()), betas=(0.9, 0.98), eps=1e-6, fused=True)
    if not matrices:
        return adamw
    return MuonWithAdamW(list(matrices.values()), adamw, dtype=products_dtype(world))
