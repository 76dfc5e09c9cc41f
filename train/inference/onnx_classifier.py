"""A classifier in onnxruntime, from the folder that `clozeline export --format onnx` writes."""

from pathlib import Path

import numpy as np
import torch

from clozeline.pipeline.common.checksums import check_sums
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.artifacts.huggingface_tokenizer import read_tokenizer
from clozeline.train.artifacts.model_links import check_links
from clozeline.train.artifacts.onnx_folder import MODEL, NAMES, OnnxGraph, read_onnx_metadata
from clozeline.train.labelled.calibration import Floats, softmax
from clozeline.train.labelled.encoding import Encoder, evaluation_batches
from clozeline.train.labelled.rows import Texts


class OnnxClassifier:
    """Texts in, probabilities out, like `Classifier`; its graph includes the temperature."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, names: tuple[str, ...]) -> None:
        values = read_onnx_metadata(folder)
        self.names = names
        self.text: str = values["text"]
        self.text_pair: str | None = values["text_pair"]
        self._graph = OnnxGraph(folder / MODEL)
        self._encoder = Encoder(tokenizer, max_seq_length=values["max_seq_length"])

    def classify(self, texts: Texts) -> Floats:
        """The probability of each class for each text, [N, C]."""
        rows = self._encoder.encode(texts)
        logits = np.empty((len(rows), len(self.names)), dtype=np.float32)
        for batch, (ids, types, mask) in evaluation_batches(rows, torch.device("cpu")):
            inputs = dict(zip(NAMES, (ids, mask.long(), types), strict=True))
            logits[batch] = self._graph.run(inputs)[0]
        return softmax(logits, 1.0)


def load_onnx_classifier(folder: Path) -> OnnxClassifier:
    """The classifier of an ONNX folder. Raises InputError for a run or a damaged folder."""
    values = read_onnx_metadata(folder)
    check_links(folder)
    check_sums(folder)
    if "names" not in values:
        raise InputError(f"{folder} is an exported run, not a classifier; export a classifier.")
    return OnnxClassifier(folder, read_tokenizer(folder), tuple(values["names"]))
