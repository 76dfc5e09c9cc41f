"""What a run on GPUs will need, from what one of its steps needs, in closed form.

    bert-base, 256 rows of 128 tokens  ->  13.7 GB, of which 1.3 stay, and 1.7e13 operations

Rows are of full length, and kernels are eager ones: compiled, a step needs less memory, since it
writes fewer results. Memory is what autograd keeps, tensor by tensor. The coefficients of the
traffic are fitted to counted steps of `nano`, `bert-mini`, `bert-base` and `modern-base` of 64 and
512 tokens. All are within 10 % of those (`tests/train/test_estimate.py`).

Speed is bounded by a roofline: the products at the GPU's peak, and everything else at the bandwidth
of its memory. What a run reaches is a guess, fitted to three models on one H200; what CUDA takes of
the memory is another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch

from clozeline.model.config import BertConfig
from clozeline.model.cpu_kernels import GPU_LOGIT_ROWS
from clozeline.model.heads import BertForPretraining, count_parameters
from clozeline.pipeline.config import DataConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.flops import Gpu, step_flops
from clozeline.train.engine.optim import is_hidden_matrix, muon_flops

#: Guesses. CUDA's context, its libraries and the allocator's holes take the rest of the memory.
USABLE = 0.9
#: The fraction of the peak that the products reach, and the fraction of the eager kernels' traffic
#: that a compiled step has. With these two the steps of `bert-base`, `nano` and `modern-small` take
#: 0.98, 0.95 and 1.05 of what they took on an H200 (docs/manual/results.md, "On a GPU").
UTILIZATION, FUSED = 0.46, 0.22
GPUS_OF_A_MACHINE = 8
CUDA = torch.device("cuda", 0)


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A later step's needs in one process; the first has no moments yet."""

    state: float  # bytes of weights, moments, and gradients that wait for another pass
    peak: float  # bytes when memory is fullest
    pass_flops: float  # operations of one forward and backward pass
    optimizer_flops: float
    traffic: float  # bytes that all but the matrix products of a pass read and write


@cache
def sizes_of(model: BertConfig) -> tuple[int, list[torch.Size]]:
    """The number of weights, with padding, and the shapes of the matrices that Muon trains."""
    with torch.device("meta"):  # without their memory
        weights = dict(BertForPretraining(model).named_parameters())
    hidden = [x.shape for name, x in weights.items() if is_hidden_matrix(name, x)]
    return sum(x.numel() for x in weights.values()), hidden


def step_cost(
    model: BertConfig, training: PretrainConfig, data: DataConfig, *, rows: int, passes: int
) -> StepCost:
    """The cost of a step with this many passes of `rows` of the longest examples each."""
    (weights, matrices), is_muon = sizes_of(model), training.optimizer == "muon"
    hidden = sum(shape.numel() for shape in matrices)
    state = weights * (12 + 4 * (passes > 1)) - 4 * hidden * is_muon
    shape = {"batch_size": rows, "seq_len": data.max_seq_length}
    words = training.sampled_words
    computed = model
    if not training.unpadded:  # local layers mask what they have computed
        computed = replace(model, local_attention=2 * data.max_seq_length)
    return StepCost(
        state=state,
        peak=state + _working_memory(model, training, data, rows=rows, passes=passes),
        pass_flops=step_flops(computed, **shape, predictions=data.predictions, words=words),
        optimizer_flops=sum(map(muon_flops, matrices)) if is_muon else 0.0,
        traffic=_traffic(model, training, data, rows=rows, passes=passes),
    )


def _working_memory(
    model: BertConfig, training: PretrainConfig, data: DataConfig, *, rows: int, passes: int
) -> float:
    """Bytes besides the state when memory is fullest: at the loss, the decoder, or the end."""
    (weights, _), hidden, inner = sizes_of(model), model.hidden_size, model.intermediate_size
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
        copies = 2 * (weights - table * hidden * (not model.tie_word_embeddings))
    kept += tokens * (4 * hidden + masks) + copies
    # Logits and their gradients, and the softmax of some rows in float32; where words are sampled,
    # the logits of a step that is logged have no gradient.
    words = min(training.sampled_words or table, table)
    softmax = min(slots, GPU_LOGIT_ROWS) * words * (8 if number == 2 else 4)
    at_loss = max(slots * words * 2 * number + softmax, slots * table * number)
    at_decoder = table * hidden * (4 + number % 4)
    at_end = 4 * (weights * (passes == 1) + table * hidden) + layer + copies
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
    return moved + (45 + 56 / passes) * sizes_of(model)[0]  # those of the whole step once


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A run on `gpus` devices of one kind."""

    gpu: Gpu
    gpus: int
    model: BertConfig
    training: PretrainConfig
    data: DataConfig

    @cached_property
    def rows(self) -> int:
        """Rows of a pass: as given, else the largest divisor of a rank's share that fits; or 0."""
        if isinstance(self.training.micro_batch_size, int):
            return self.training.rows_per_pass(self.gpus)
        sizes = (n for n in range(self.share, 0, -1) if self.share % n == 0)
        return next((n for n in sizes if self.memory(n) <= USABLE * self.gpu.memory * 1e9), 0)

    @property
    def share(self) -> int:
        """Examples of a rank in each step."""
        return self.training.batch_size // self.gpus

    def cost(self, rows: int) -> StepCost:
        """What a step with passes of so many rows needs."""
        return step_cost(self.model, self.training, self.data, rows=rows, passes=self.share // rows)

    def memory(self, rows: int) -> float:
        """Bytes of a rank with passes of so many rows; FSDP2's gathered layers are not counted."""
        cost = self.cost(rows)
        machines = -(-self.gpus // GPUS_OF_A_MACHINE)  # with FSDP2 each holds the whole model
        shards = self.gpus / machines if self.training.parallel == "fsdp" else 1
        return cost.peak - cost.state * (1 - 1 / shards)

    @property
    def passes(self) -> int:
        """Forward passes of a step and rank."""
        return self.share // self.rows

    @property
    def flops(self) -> float:
        """Operations of a step and rank."""
        layers = self.model.num_hidden_layers
        share = -(-layers // self.gpus) / layers  # ranks share Muon's matrices
        cost = self.cost(self.rows)
        return cost.pass_flops * self.passes + cost.optimizer_flops * share

    @property
    def slots(self) -> int:
        """Tokens of a step, with padding, over all ranks."""
        return self.training.batch_size * self.data.max_seq_length

    def seconds(self, *, utilization: float) -> float:
        """Seconds of a step whose products reach this fraction of the peak; 1.0: the roofline.

        Products and what the memory moves besides; what the ranks send is not counted.
        """
        peak = self.gpu.peak if self.training.precision == "bf16" else self.gpu.peak / 2
        traffic = self.cost(self.rows).traffic * self.passes / self.gpu.bandwidth
        if self.training.compile is not False:
            traffic *= FUSED
        return self.flops / (peak * utilization) + traffic


HEADER = (
    "GPU", "GPUs", "batch", "micro", "passes", "GB", "GFLOP/token", "ms at best",
    "tokens/s at best", "tokens/s guessed", "steps", "hours", "cost",
)  # fmt: skip
NOTES = (
    "computed   memory, operations and bytes: a step of eager kernels on rows of full length",
    "at best    products at the GPU's peak, all else at its memory's bandwidth (compiled: "
    f"{FUSED:.0%} of it)",
    f"guessed    products at {UTILIZATION:.0%} of the peak, {USABLE:.0%} of the memory",
    "left out   communication between GPUs; it may overlap with the backward pass",
)


def report(estimates: Sequence[Estimate], *, price: float | None) -> list[str]:
    """A table with a line for each estimate, and what is counted and what is a guess.

    The `price` is that of one GPU for an hour.
    """
    rows = [HEADER, *(_cells(estimate, price) for estimate in estimates)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(x.rjust(n) for x, n in zip(row, widths, strict=True)) for row in rows]
    model, length = estimates[0].model, estimates[0].data.max_seq_length
    return [
        f"model      {count_parameters(model):,} parameters, examples of {length} tokens",
        *table,
        *NOTES,
    ]


def _cells(estimate: Estimate, price: float | None) -> tuple[str, ...]:
    """A line of the table; dashes where not even one row fits."""
    training = estimate.training
    start = estimate.gpu.name, str(estimate.gpus), str(training.batch_size)
    if not estimate.rows:
        return (*start, "0", *["-"] * (len(HEADER) - 4))
    best, guessed = estimate.seconds(utilization=1.0), estimate.seconds(utilization=UTILIZATION)
    steps = training.budget / guessed if training.budget else training.max_steps
    hours = guessed * steps / 3600
    return (
        *start,
        str(estimate.rows),
        str(estimate.passes),
        f"{estimate.memory(estimate.rows) / 1e9:.1f}",
        f"{estimate.flops * estimate.gpus / estimate.slots / 1e9:.3f}",
        f"{best * 1e3:,.1f}",
        f"{estimate.slots / best:,.0f}",
        f"{estimate.slots / guessed:,.0f}",
        f"{steps:,.0f}",
        f"{hours:,.1f}",
        "-" if price is None else f"{hours * price * estimate.gpus:,.2f}",
    )
