"""ONNX graphs of any model, which onnxruntime runs without torch.

    encoder.onnx    last_hidden_state float32 [B, S, H], pooled float32 [B, H]; of a run
    model.onnx      logits float32, [B, S, V] of every token, or [B, C] of the classes
    onnx.json       maximum length; of a classifier also classes, columns, the tokens of its
                    prompt, which follow [CLS], and what a longer text loses, if not its end

Inputs are int64 [B, S]: input_ids, attention_mask (1 at tokens), and token_type_ids if the model
has segments. B and S are free; S is at most the number of the model's positions.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.pipeline.common.errors import InputError, check_packages

ENCODER, MODEL, METADATA = "encoder.onnx", "model.onnx", "onnx.json"
TOLERANCE = 1e-4  # largest difference from torch
CHECKED_SHAPES = ((1, 5), (3, 16), (2, 1024))  # rows and tokens, at most those that the model reads


def write_run_graphs(folder: Path, model: BertForPretraining) -> float:
    """Write encoder.onnx and model.onnx; returns the largest difference of its logits from torch.

    Raises InputError where a package is missing, or where a graph differs from the model.
    """

    def logits(*inputs: Tensor) -> Tensor:
        hidden, _ = model.encoder(*inputs)
        scores: Tensor = model.mlm_head(hidden, model.encoder.embeddings.word_embeddings.weight)
        return scores[..., : model.config.vocab_size]

    encoder = _Graph(model, model.encoder)
    _write_graph(folder / ENCODER, encoder, ["last_hidden_state", "pooled"])
    return _write_graph(folder / MODEL, _Graph(model, logits), ["logits"])


def write_classifier_graph(folder: Path, model: BertForClassification) -> float:
    """As `write_run_graphs`: model.onnx alone."""
    graph = _Graph(model, model, shortest=model.mask_position + 1)
    return _write_graph(folder / MODEL, graph, ["logits"])


class _Graph(nn.Module):
    """Some outputs of a model, from the inputs of an ONNX graph of `shortest` tokens or more."""

    def __init__(
        self,
        model: BertForPretraining | BertForClassification,
        outputs: Callable[[Tensor, Tensor, Tensor], Any],
        *,
        shortest: int = 1,
    ) -> None:
        super().__init__()
        self.model, self.outputs, self.shortest = model, outputs, shortest

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Any:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return self.outputs(input_ids, types, attention_mask.bool())


def _write_graph(path: Path, graph: _Graph, outputs: list[str]) -> float:
    check_packages("the ONNX format", "onnx", "onnxscript", "onnxruntime")
    import onnx

    graph.eval()
    config = graph.model.config
    length = max(graph.shortest, min(16, config.max_position_embeddings))
    example = _batch(config, rows=2, length=length)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    axes = {0: "batch", 1: "sequence"}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # of torchvision, which is not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        # By itself the exporter first traces without dynamo, which takes the batch for a constant.
        traced = torch.export.export(
            graph, (), example, dynamic_shapes=dict.fromkeys(example, free), strict=True
        )
        program = torch.onnx.export(
            traced,
            input_names=list(example),
            output_names=outputs,
            dynamic_shapes=dict.fromkeys(example, axes),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for node in proto.graph.node:  # source locations, with paths of this machine
        del node.metadata_props[:]
    del proto.graph.metadata_props[:]
    onnx.save(proto, path)
    return _largest_difference(path, graph)


@torch.no_grad()
def _largest_difference(path: Path, graph: _Graph) -> float:
    """Largest difference of all outputs at tokens from torch's; InputError beyond the tolerance."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    config, largest = graph.model.config, 0.0
    for rows, length in CHECKED_SHAPES:
        length = max(graph.shortest, min(length, config.max_position_embeddings))
        batch = _batch(config, rows=rows, length=length)
        outputs = session.run(None, {name: x.numpy() for name, x in batch.items()})
        is_token = batch["attention_mask"].bool()
        wanted = graph(**batch)
        wanted = [wanted] if isinstance(wanted, Tensor) else wanted
        for ours, theirs in zip(outputs, wanted, strict=True):
            per_token = ours.shape[:2] == is_token.shape and ours.ndim == 3
            difference = np.abs(ours - theirs.numpy())
            difference = difference[is_token.numpy()] if per_token else difference
            largest = float(np.maximum(largest, difference.max()))  # NaN stays
    if not largest <= TOLERANCE:
        raise InputError(
            f"{path.name} differs from the model by {largest:.1e} in onnxruntime; export with "
            "other versions of torch and onnxruntime."
        )
    return largest


def _batch(config: BertConfig, *, rows: int, length: int) -> dict[str, Tensor]:
    """Random tokens; each row is a little shorter than the one before it."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (rows, length), generator=generator)
    lengths = (length - torch.arange(rows)[:, None]).clamp(min=1)
    mask = (torch.arange(length) < lengths).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    if config.type_vocab_size:
        batch["token_type_ids"] = mask * (torch.arange(length) >= length // 2)
    return batch
