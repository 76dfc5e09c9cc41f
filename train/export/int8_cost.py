"""What int8 weights cost: the same rows through an ONNX graph before and after.

2,000 labelled rows        accuracy 91.20% -> 91.15%, the same class for 99.4%
256 held-out examples      masked-LM loss 2.101 -> 2.108, the same token for 97.9%
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.onnx_folder import NAMES, OnnxGraph
from clozeline.train.artifacts.run import check_fits
from clozeline.train.data.batch import Batch
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.inference.onnx_classifier import OnnxClassifier
from clozeline.train.labelled.rows import Labelled, class_ids, read_named

ROWS_AT_ONCE = 32
EXAMPLES, EXAMPLES_AT_ONCE = 256, 4  # small batches: their logits are [B, S, V]


@dataclass(frozen=True, kw_only=True)
class Int8Cost:
    """Accuracies and shares in [0, 1]; losses in nats, of a masked LM."""

    rows: int  # texts, or masked tokens
    accuracy: float
    accuracy_float32: float
    agreement: float  # the same class, or token
    loss: float | None = None
    loss_float32: float | None = None

    def to_dict(self) -> dict[str, float]:
        """Plain values; what is not measured is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        what, answer = ("rows", "class") if self.loss is None else ("masked tokens", "token")
        loss = ""
        if self.loss is not None:
            loss = f"masked-LM loss {self.loss_float32:.3f} -> {self.loss:.3f}, "
        return (
            f"{loss}accuracy {self.accuracy_float32:.2%} -> {self.accuracy:.2%} on {self.rows:,} "
            f"{what}, the same {answer} for {self.agreement:.1%}"
        )


def read_test_rows(
    test: str, *, names: tuple[str, ...], text: str, text_pair: str | None, label: str
) -> Labelled:
    """The labelled rows of `FILE` or `FILE?text=A&text_pair=B&label=C`.

    Raises InputError as `read_named` does, and for a class that is not in `names`.
    """
    labelled = read_named(test, text=text, text_pair=text_pair, label=label)
    class_ids(labelled, names)
    return labelled


def check_test_shards(shards: AnyPath, run: Path, *, tokenizer_digest: str, positions: int) -> None:
    """Raises InputError for shards that are packed, hold nothing out or do not fit the model."""
    manifest = read_manifest(shards)
    check_fits(shards, manifest, run, tokenizer_digest=tokenizer_digest, positions=positions)
    if manifest.config.is_packed:  # a graph has one attention mask for the whole row
        raise InputError(
            f"{shards} has packed rows, whose pieces an ONNX graph cannot keep apart; give shards "
            "of another --pairs."
        )
    if not manifest.num_examples("validation"):
        raise InputError(f"{shards} has no held-out examples (--validation) to measure int8 on.")


def classifier_cost(before: OnnxClassifier, after: OnnxClassifier, rows: Labelled) -> Int8Cost:
    """Compare the classes of all rows, float32 against int8."""
    labels = class_ids(rows, before.names)
    found = []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        texts = rows.texts.take(np.arange(start, min(start + ROWS_AT_ONCE, len(rows))))
        found.append([graph.classify(texts).argmax(1) for graph in (before, after)])
    old, new = (np.concatenate(column) for column in zip(*found, strict=True))
    return Int8Cost(
        rows=len(rows),
        accuracy=float((new == labels).mean()),
        accuracy_float32=float((old == labels).mean()),
        agreement=float((old == new).mean()),
    )


def masked_lm_cost(before: OnnxGraph, after: OnnxGraph, shards: AnyPath) -> Int8Cost:
    """Compare the masked tokens of the first held-out examples, float32 against int8."""
    sums = torch.zeros(6, dtype=torch.float64)
    for batch in _held_out(shards):
        old, new = (_masked_logits(graph, batch) for graph in (before, after))
        labels = batch.masked_lm_labels[batch.masked_lm_weights > 0]  # [M]
        best, best_new = old.argmax(-1), new.argmax(-1)
        losses = [torch.nn.functional.cross_entropy(x, labels, reduction="sum") for x in (old, new)]
        counts = [(best == labels).sum(), (best_new == labels).sum(), (best == best_new).sum()]
        sums += torch.stack([x.double() for x in (*losses, *counts, torch.tensor(len(labels)))])
    loss, loss_new, hits, hits_new, same, total = sums.tolist()
    return Int8Cost(
        rows=int(total),
        accuracy=hits_new / total,
        accuracy_float32=hits / total,
        agreement=same / total,
        loss=loss_new / total,
        loss_float32=loss / total,
    )


def _held_out(shards: AnyPath) -> Iterator[Batch]:
    for loaded in evaluation_batches(shards, batch_size=EXAMPLES_AT_ONCE, limit=EXAMPLES):
        yield loaded.batch


def _masked_logits(graph: OnnxGraph, batch: Batch) -> Tensor:
    """The logits of the masked tokens, float32 [M, V]."""
    inputs: dict[str, Any] = dict(
        zip(
            NAMES,
            (batch.input_ids, batch.attention_mask.long(), batch.token_type_ids),
            strict=True,
        )
    )
    logits = torch.from_numpy(graph.run(inputs)[0])  # [B, S, V]
    rows = torch.arange(len(logits))[:, None].expand_as(batch.masked_lm_positions)
    return logits[rows, batch.masked_lm_positions][batch.masked_lm_weights > 0]
