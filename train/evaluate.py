"""How good a pretrained model is on examples it has not seen.

Two yardsticks stand beside the model, computed on the very same masks: the cross-entropy of the
training unigram (what a model knows that has only counted words), and the accuracy of always
guessing the most frequent word.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.heads import BertForPretraining, masked_lm_loss_sum, next_sentence_loss_sum
from train.batch import Batch
from train.distributed import World


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
        """Plain values; what is not measured is left out."""
        return {name: value for name, value in asdict(self).items() if not np.isnan(value)}


@torch.no_grad()
def evaluate(
    model: BertForPretraining,
    batches: Iterable[Batch],
    *,
    token_counts: list[int],
    world: World,
    autocast: AbstractContextManager[None],
) -> Evaluation:
    """Look at each example once; every process takes its part and all get the same numbers."""
    unigram = _log_unigram(token_counts).to(world.device)
    was_training = model.training
    model.eval()
    sums = torch.zeros(9, dtype=torch.float64, device=world.device)
    for batch in batches:
        batch = batch.to(world.device)
        with autocast:
            mlm_logits, nsp_logits = model(
                batch.input_ids,
                batch.token_type_ids,
                batch.attention_mask,
                batch.masked_lm_positions,
            )
        sums += _sums(batch, mlm_logits, nsp_logits, unigram)
    model.train(was_training)
    return _evaluation(world.sum(sums).tolist())


def _sums(batch: Batch, mlm_logits: Tensor, nsp_logits: Tensor, unigram: Tensor) -> Tensor:
    labels, weights = batch.masked_lm_labels, batch.masked_lm_weights  # [B, P]
    pairs = batch.next_sentence_labels.masked_fill(batch.example_weights == 0, -1)  # [B]
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
    ]
    nsp_hits = ((nsp_logits.argmax(-1) == pairs) & (pairs >= 0)).sum()
    return torch.stack([part.double() for part in (*parts, nsp_hits)])


def _evaluation(sums: list[float]) -> Evaluation:
    examples, masked, mlm, hits, unigram, frequent, pairs, nsp, nsp_hits = sums
    return Evaluation(
        examples=int(examples),
        mlm_loss=_ratio(mlm, masked),
        mlm_accuracy=_ratio(hits, masked),
        nsp_loss=_ratio(nsp, pairs),
        nsp_accuracy=_ratio(nsp_hits, pairs),
        unigram_loss=_ratio(unigram, masked),
        most_frequent_share=_ratio(frequent, masked),
    )


def _log_unigram(token_counts: list[int]) -> Tensor:
    counts: NDArray[np.float64] = np.array(token_counts, dtype=np.float64) + 1
    return torch.from_numpy(np.log(counts / counts.sum()))


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")
