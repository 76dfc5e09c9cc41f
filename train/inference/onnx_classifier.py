"""A classifier in onnxruntime, from the folder that `clozeline export --format onnx` writes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import check_sums
from clozeline.train.artifacts.huggingface import check_links, read_tokenizer
from clozeline.train.artifacts.onnx_folder import MODEL, NAMES, OnnxGraph, read_onnx_metadata
from clozeline.train.labelled.calibration import softmax
from clozeline.train.labelled.encoding import Encoder, evaluation_batches
from clozeline.train.labelled.rows import Floats, Texts


@dataclass(frozen=True, kw_only=True)
class OnnxClassifier:
    """Texts in, probabilities out, like `Classifier`; its graph includes the temperature."""

    names: tuple[str, ...]  # [C]
    text: str  # columns it was trained on
    text_pair: str | None
    graph: OnnxGraph
    encoder: Encoder

    def classify(self, texts: Texts) -> Floats:
        """The probability of each class for each text, [N, C]."""
        rows = self.encoder.encode(texts)
        logits = np.empty((len(rows), len(self.names)), dtype=np.float32)
        for batch, (ids, types, mask) in evaluation_batches(rows, torch.device("cpu")):
            inputs = dict(zip(NAMES, (ids, mask.long(), types), strict=True))
            logits[batch] = self.graph.run(inputs)[0]
        return softmax(logits)


def load_onnx_classifier(folder: Path) -> OnnxClassifier:
    """The classifier of an ONNX folder. Raises InputError for a run or a damaged folder."""
    values = read_onnx_metadata(folder)
    check_links(folder)
    check_sums(folder)
    if "names" not in values:
        raise InputError(f"{folder} is an exported run, not a classifier; export a classifier.")
    return OnnxClassifier(
        names=tuple(values["names"]),
        text=values["text"],
        text_pair=values["text_pair"],
        graph=OnnxGraph(folder / MODEL),
        encoder=Encoder(
            read_tokenizer(folder),
            max_seq_length=values["max_seq_length"],
            prompt=values.get("prompt"),
            truncate=values.get("truncate", "end"),
        ),
    )
