"""The answers of a model on masked rows: its best token for each mask, and the NSP label.

[CLS] the [MASK] sat [SEP] it slept [SEP]  ->  dog 0.31, "cat" (the answer) 0.02; label 1: 0.48
"""

from collections.abc import Iterable, Iterator

import torch

from clozeline.model.heads import BertForPretraining
from clozeline.train.data.batch import Batch
from clozeline.train.evaluation.evaluate import logits_of
from clozeline.train.monitoring.learning import Guesses, HeldOutRow


def guess(model: BertForPretraining, batches: Iterable[Batch], *, precision: str) -> Guesses:
    """The answers for each real row of the batches, in order; padding rows are left out."""
    found = Guesses(guesses=[], probabilities=[], of_answers=[], label_1=[])
    for there, mlm_logits, nsp_logits in logits_of(model, batches, precision=precision):
        batch = there.to(torch.device("cpu"))
        logits = mlm_logits[..., : model.config.vocab_size]
        probabilities = logits.float().softmax(-1).cpu()  # [B, P, V]
        best, tokens = probabilities.max(-1)
        of_answers = probabilities.gather(-1, batch.masked_lm_labels[..., None])[..., 0]
        label_1 = nsp_logits.float().softmax(-1)[:, 1].tolist()
        for row, number in _real_rows(batch):
            found.guesses.append(tokens[row, :number].tolist())
            found.probabilities.append(best[row, :number].tolist())
            found.of_answers.append(of_answers[row, :number].tolist())
            has_b = int(batch.next_sentence_labels[row]) >= 0
            found.label_1.append(label_1[row] if has_b else None)
    return found


def held_out_rows(batches: Iterable[Batch]) -> list[HeldOutRow]:
    """The real rows of the batches, without padding."""
    found = []
    for batch in batches:
        for row, number in _real_rows(batch):
            mask = batch.attention_mask[row]  # of a packed row, the piece of each token
            length = int((mask != 0).sum())
            length_b = int(batch.token_type_ids[row].sum())
            found.append(
                HeldOutRow(
                    input_ids=batch.input_ids[row, :length].tolist(),
                    positions=batch.masked_lm_positions[row, :number].tolist(),
                    answers=batch.masked_lm_labels[row, :number].tolist(),
                    length_a=length - length_b,
                    next_sentence_label=int(batch.next_sentence_labels[row]),
                    piece_lengths=[] if mask.dtype == torch.bool else mask.bincount()[1:].tolist(),
                )
            )
    return found


def _real_rows(batch: Batch) -> Iterator[tuple[int, int]]:
    """Index and number of masks of each row that is not padding."""
    numbers = batch.masked_lm_weights.sum(1).int().tolist()
    for row, weight in enumerate(batch.example_weights.tolist()):
        if weight:
            yield row, numbers[row]
