"""How good a pretrained model is on examples it has not seen.

The model is compared with two baselines, computed on the same masks: the cross-entropy of the
training unigram (a model that has only counted words), and the accuracy of always guessing the most
frequent word.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.model.heads import BertForPretraining, masked_lm_loss_sum, next_sentence_loss_sum
from clozeline.pipeline.common.config_checks import (
    check_at_least,
    check_word,
    counted,
    takes_keywords,
)
from clozeline.pipeline.common.paths import GivenPath
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.run import check_fits, load_run
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.engine.distributed import World, join_world
from clozeline.train.engine.precision import autocast, without_compiler

Split = Literal["validation", "train"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Losses in nats, accuracies and shares in [0, 1]; NaN where there is nothing to measure."""

    examples: int
    mlm_loss: float
    mlm_accuracy: float
    nsp_loss: float
    nsp_accuracy: float
    unigram_loss: float
    most_frequent_share: float

    @property
    def loss(self) -> float:
        """What training minimizes."""
        return self.mlm_loss + (0.0 if np.isnan(self.nsp_loss) else self.nsp_loss)

    def to_dict(self) -> dict[str, float]:
        """The numbers by name, without those that were not measured."""
        return {name: value for name, value in asdict(self).items() if not np.isnan(value)}


@torch.no_grad()
def evaluate_model(
    model: BertForPretraining,
    batches: Iterable[LoadedBatch[Any]],
    *,
    log_unigram: NDArray[np.float64],
    world: World,
    precision: str,
) -> Evaluation:
    """Evaluate each example once; each process takes a part and all get the same numbers.

    `log_unigram` [V] comes from the manifest.
    """
    unigram = torch.from_numpy(log_unigram).to(world.device)
    sums = torch.zeros(9, dtype=torch.float64, device=world.device)
    was_training = model.training
    model.eval()
    for loaded in batches:
        batch = loaded.batch.to(world.device)
        with autocast(precision, world.device), without_compiler():
            mlm_logits, nsp_logits = model(
                batch.input_ids,
                batch.token_type_ids,
                batch.attention_mask,
                batch.masked_lm_positions,
            )
        sums += _sums(batch, mlm_logits, nsp_logits, unigram)
    model.train(was_training)
    examples, masked, mlm, hits, unigrams, frequent, pairs, nsp, nsp_hits = world.sum(sums).tolist()
    return Evaluation(
        examples=int(examples),
        mlm_loss=_ratio(mlm, masked),
        mlm_accuracy=_ratio(hits, masked),
        nsp_loss=_ratio(nsp, pairs),
        nsp_accuracy=_ratio(nsp_hits, pairs),
        unigram_loss=_ratio(unigrams, masked),
        most_frequent_share=_ratio(frequent, masked),
    )


def _sums(batch: Batch, mlm_logits: Tensor, nsp_logits: Tensor, unigram: Tensor) -> Tensor:
    labels, weights = batch.masked_lm_labels, batch.masked_lm_weights  # [B, P]
    pairs = batch.next_sentence_labels  # [B], -1 in rows of padding too
    hits = (mlm_logits.argmax(-1) == labels) * weights
    parts = [
        batch.example_weights.sum(),
        weights.sum(),
        masked_lm_loss_sum(mlm_logits, labels, weights),
        hits.sum(),
        -(unigram[labels] * weights).sum(),
        ((labels == unigram.argmax()) * weights).sum(),
        (pairs >= 0).sum(),
        next_sentence_loss_sum(nsp_logits, pairs),
        ((nsp_logits.argmax(-1) == pairs) & (pairs >= 0)).sum(),
    ]
    return torch.stack([part.double() for part in parts])


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")


@takes_keywords
def evaluate(
    run: GivenPath,
    shards: GivenPath,
    *,
    split: Split = "validation",
    batch_size: int = 64,
    limit: int | None = None,
) -> Evaluation:
    """Measure the newest weights of a run on a data set, or on its first `limit` examples.

        >>> found = evaluate("work/run", "work/shards", split="train", limit=64)
        >>> found.examples, found.mlm_loss < 20
        (64, True)

    Losses are in nats. Raises InputError where the model cannot read the examples, or there are
    none in the split.
    """
    check_word("split", split, get_args(Split))
    check_at_least("batch_size", batch_size, 1)
    if limit is not None:
        check_at_least("limit", limit, 1)
    config, _, weights = load_run(run)
    manifest = read_manifest(shards)
    check_fits(shards, manifest, run, config)
    with join_world() as world:
        model = BertForPretraining(config.model)
        model.load_state_dict(weights)
        return evaluate_model(
            model.to(world.device),
            evaluation_batches(
                shards,
                split=split,
                batch_size=batch_size,
                rank=world.rank,
                world_size=world.size,
                limit=limit,
            ),
            log_unigram=manifest.log_unigram,
            world=world,
            precision=config.training.precision,
        )


def as_table(evaluation: Evaluation, *, split: str = "validation") -> Iterator[str]:
    """The numbers as lines of text, each next to its baseline."""
    kind = "held-out" if split == "validation" else "training"
    loss, unigram = evaluation.mlm_loss, evaluation.unigram_loss
    better = "better" if loss <= unigram else "worse"
    yield counted(evaluation.examples, f"{kind} example")
    yield (
        f"masked-LM loss      {loss:6.3f}   unigram {unigram:.3f}: "
        f"{abs(unigram - loss):.3f} nats {better}"
    )
    yield (
        f"masked-LM accuracy  {evaluation.mlm_accuracy:6.1%}   "
        f"always the most frequent token {evaluation.most_frequent_share:.1%}"
    )
    if not np.isnan(evaluation.nsp_loss):
        yield f"NSP loss            {evaluation.nsp_loss:6.3f}"
        yield f"NSP accuracy        {evaluation.nsp_accuracy:6.1%}   chance 50 %"
