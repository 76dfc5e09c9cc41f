"""What a training step needs, in closed form: bytes of memory, operations, bytes that it moves.

    bert-base, 256 rows of 128 tokens  ->  13.7 GB, of which 1.3 stay, and 1.7e13 operations

    T tokens   M slots for masked tokens   N layers   H hidden   F feed-forward   V vocabulary

Rows are of full length, and kernels are eager ones: compiled, a step needs less memory, since it
writes fewer results. Memory is what autograd keeps, tensor by tensor. The coefficients of the
traffic are fitted to counted steps of `nano`, `bert-mini`, `bert-base` and `modern-base` of 64 and
512 tokens. All are within 10 % of those (`tests/train/test_estimate.py`).
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

from clozeline.model.config import BertConfig
from clozeline.model.cpu_kernels import GPU_LOGIT_ROWS
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.flops import step_flops
from clozeline.train.engine.optim import is_hidden_matrix, muon_flops


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A later step's needs in one process; the first has no moments yet."""

    state: float  # bytes of weights, moments, and gradients that wait for another pass
    peak: float  # bytes when memory is fullest
    pass_flops: float  # operations of one forward and backward pass
    optimizer_flops: float
    traffic: float  # bytes that all but the matrix products of a pass read and write


@dataclass(frozen=True)
class Sizes:
    """The numbers of weights of a pretraining model, with padding."""

    all: int
    layers: int
    hidden: tuple[torch.Size, ...]  # the layers' matrices, which Muon trains


@cache
def sizes_of(model: BertConfig) -> Sizes:
    """The sizes of a model, without its memory."""
    with torch.device("meta"):
        weights = dict(BertForPretraining(model).named_parameters())
    return Sizes(
        all=sum(x.numel() for x in weights.values()),
        layers=sum(x.numel() for name, x in weights.items() if name.startswith("encoder.layers.")),
        hidden=tuple(x.shape for name, x in weights.items() if is_hidden_matrix(name, x)),
    )


def step_cost(
    model: BertConfig, training: PretrainConfig, data: DataConfig, *, rows: int, passes: int
) -> StepCost:
    """The cost of a step with this many passes of `rows` of the longest examples each."""
    sizes, is_muon = sizes_of(model), training.optimizer == "muon"
    hidden = sum(shape.numel() for shape in sizes.hidden)
    state = sizes.all * (12 + 4 * (passes > 1)) - 4 * hidden * is_muon
    shape = {"batch_size": rows, "seq_len": data.max_seq_length}
    words = training.sampled_words
    computed = model
    if not training.unpadded:  # local layers mask what they have computed
        computed = replace(model, local_attention=2 * data.max_seq_length)
    return StepCost(
        state=state,
        peak=state + _working_memory(model, training, data, rows=rows, passes=passes),
        pass_flops=step_flops(computed, **shape, predictions=data.predictions, words=words),
        optimizer_flops=sum(map(muon_flops, sizes.hidden)) if is_muon else 0.0,
        traffic=_traffic(model, training, data, rows=rows, passes=passes),
    )


def _working_memory(
    model: BertConfig, training: PretrainConfig, data: DataConfig, *, rows: int, passes: int
) -> float:
    """Bytes besides the state when memory is fullest: at the loss, the decoder, or the end."""
    sizes, hidden, inner = sizes_of(model), model.hidden_size, model.intermediate_size
    tokens, slots = rows * data.max_seq_length, rows * data.predictions
    table, masks = model.padded_vocab_size, hidden * bool(model.hidden_dropout_prob)
    number = 2 if training.precision == "bf16" else 4
    # The input, queries, keys, values and what is attended to; then the inputs of both norms and of
    # the feed-forward products, of the last layer those of masked tokens alone.
    attention = 5 * number * hidden
    others = (number + 8) * hidden + 2 * masks + number * inner * (4 if model.gated else 2)
    layer, layers = tokens * (attention + others), model.num_hidden_layers
    kept = (layers - 1) * layer + tokens * attention + slots * others
    kept += _masked_layers(model, training, data) * tokens * data.max_seq_length * number
    copies = 0  # of the matrices, in bfloat16
    if number == 2:
        copies = 2 * (sizes.all - table * hidden * (not model.tie_word_embeddings))
    kept += tokens * (4 * hidden + masks) + copies
    # Logits and their gradients, and the softmax of some rows in float32; where words are sampled,
    # the logits of a step that is logged have no gradient.
    words = min(training.sampled_words or table, table)
    softmax = min(slots, GPU_LOGIT_ROWS) * words * (8 if number == 2 else 4)
    at_loss = max(slots * words * 2 * number + softmax, slots * table * number)
    at_decoder = table * hidden * (4 + number % 4)
    at_end = 4 * (sizes.all * (passes == 1) + table * hidden) + layer + copies
    return max(kept + max(at_loss, at_decoder), at_end)


def _masked_layers(model: BertConfig, training: PretrainConfig, data: DataConfig) -> int:
    """Layers in whose attention each row has a mask of S x S."""
    if training.unpadded:
        return 0
    is_narrow = data.max_seq_length > model.local_attention // 2 + 1
    is_local = (
        not model.is_global(layer) and is_narrow for layer in range(model.num_hidden_layers)
    )
    return model.num_hidden_layers if data.is_packed else sum(is_local)


def _traffic(
    model: BertConfig, training: PretrainConfig, data: DataConfig, *, rows: int, passes: int
) -> float:
    """Bytes that all but the matrix products of a pass read and write."""
    tokens, hidden, table = rows * data.max_seq_length, model.hidden_size, model.padded_vocab_size
    layer = 95 * model.intermediate_size * (1 + model.gated)
    layer += hidden * (150 * (not training.unpadded) + 60 * bool(model.hidden_dropout_prob))
    layer += hidden * 445 * (model.positions == "rotary")
    logits = rows * data.predictions * min(training.sampled_words or table, table)
    moved: float = tokens * (model.num_hidden_layers * layer + 470 * hidden) + 107 * logits
    moved *= 1 if training.precision == "bf16" else 1.45
    return moved + (45 + 56 / passes) * sizes_of(model).all  # those of the whole step once
