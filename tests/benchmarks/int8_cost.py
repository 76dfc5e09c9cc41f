"""What int8 weights cost: the same rows through two ONNX folders of `clozeline export`.

    python tests/benchmarks/int8_cost.py work/onnx work/onnx-int8 test.csv      # of a classifier
    python tests/benchmarks/int8_cost.py work/onnx work/onnx-int8 work/shards   # of a run

2,000 labelled rows        accuracy 91.20% -> 91.15%, the same class for 99.4%
256 held-out examples      masked-LM loss 2.101 -> 2.108, the same token for 97.9%

Labelled rows are a file with the text columns of the training and one called label, or
FILE?text=A&text_pair=B&label=C.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, path_of
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.onnx_folder import MODEL, NAMES, OnnxGraph, read_onnx_metadata
from clozeline.train.data.batch import Batch
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.inference.onnx_classifier import OnnxClassifier, load_onnx_classifier
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

    def __str__(self) -> str:
        what, answer = ("rows", "class") if self.loss is None else ("masked tokens", "token")
        loss = ""
        if self.loss is not None:
            loss = f"masked-LM loss {self.loss_float32:.3f} -> {self.loss:.3f}, "
        return (
            f"{loss}accuracy {self.accuracy_float32:.2%} -> {self.accuracy:.2%} on {self.rows:,} "
            f"{what}, the same {answer} for {self.agreement:.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("float32", "int8", "test"):
        parser.add_argument(name)
    print(cost_of(**vars(parser.parse_args())))


def cost_of(float32: str, int8: str, test: str) -> Int8Cost:
    """Compare two exports of one classifier on labelled rows, of one run on held-out examples.

    Raises InputError for a class that the classifier does not have, and for packed rows.
    """
    folders = (Path(float32), Path(int8))
    values = read_onnx_metadata(folders[0])
    if "names" in values:
        columns = {"label": "label", "text": values["text"], "text_pair": values["text_pair"]}
        before, after = map(load_onnx_classifier, folders)
        return classifier_cost(before, after, read_named(test, **columns))
    before, after = (OnnxGraph(folder / MODEL) for folder in folders)
    return masked_lm_cost(before, after, path_of(test))


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
    if read_manifest(shards).config.is_packed:
        raise InputError(
            f"{shards} has packed rows, whose pieces an ONNX graph cannot keep apart; give shards "
            "of another --pairs."
        )
    sums = torch.zeros(6, dtype=torch.float64)
    for loaded in evaluation_batches(shards, batch_size=EXAMPLES_AT_ONCE, limit=EXAMPLES):
        batch = loaded.batch
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


def _masked_logits(graph: OnnxGraph, batch: Batch) -> Tensor:
    """The logits of the masked tokens, float32 [M, V]."""
    tensors = (batch.input_ids, batch.attention_mask.long(), batch.token_type_ids)
    inputs: dict[str, Any] = dict(zip(NAMES, tensors, strict=True))
    logits = torch.from_numpy(graph.run(inputs)[0])  # [B, S, V]
    rows = torch.arange(len(logits))[:, None].expand_as(batch.masked_lm_positions)
    return logits[rows, batch.masked_lm_positions][batch.masked_lm_weights > 0]


if __name__ == "__main__":
    main()
