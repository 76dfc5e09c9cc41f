"""What a run on GPUs will need, from the cost of one of its steps.

Speed is bounded by a roofline: the products at the GPU's peak, and everything else at the bandwidth
of its memory. What a run reaches is a guess, fitted to three models on one H200; what CUDA takes of
the memory is another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from clozeline.model.config import BertConfig
from clozeline.model.heads import count_parameters
from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.config import DataConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.flops import Gpu
from clozeline.train.estimate.step_cost import StepCost, sizes_of, step_cost

#: Guesses. CUDA's context, its libraries and the allocator's holes take the rest of the memory.
USABLE = 0.9
#: The fraction of the peak that the products reach, and the fraction of the eager kernels' traffic
#: that a compiled step has. With these two the steps of `bert-base`, `nano` and `modern-small` take
#: 0.98, 0.95 and 1.05 of what they took on an H200 (docs/manual/results.md, "On a GPU").
UTILIZATION, FUSED = 0.46, 0.22
GPUS_OF_A_MACHINE = 8
CUDA = torch.device("cuda", 0)


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

    @property
    def cost(self) -> StepCost:
        """What a step with passes of `rows` needs."""
        return self._cost(self.rows)

    def memory(self, rows: int) -> float:
        """Bytes of a rank with passes of so many rows; FSDP2's gathered layers are not counted."""
        cost = self._cost(rows)
        shards = self.gpus / self.machines if self.training.parallel == "fsdp" else 1
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
        return self.cost.pass_flops * self.passes + self.cost.optimizer_flops * share

    @property
    def slots(self) -> int:
        """Tokens of a step, with padding, over all ranks."""
        return self.training.batch_size * self.data.max_seq_length

    @property
    def machines(self) -> int:
        """Those that the ranks fill; with FSDP2 each holds the whole model."""
        return -(-self.gpus // GPUS_OF_A_MACHINE)

    @property
    def sent(self) -> tuple[float, float]:
        """Bytes that a rank sends in a step inside its machine, and to other machines.

        A ring's sums; or FSDP2's gathers and sums, and then sums of each shard.
        """
        layers = sizes_of(self.model).layers
        others = sizes_of(self.model).all - layers
        is_muon, is_ddp = self.training.optimizer == "muon", self.training.parallel == "ddp"
        # In bfloat16: whole updates gathered, or shards sent to who computes an update and back.
        updates = is_muon * layers * (2 if is_ddp else 4 / self.gpus)
        if is_ddp:
            sums = (1 - 1 / self.gpus) * ((layers + others) * 8 + updates)
            return (sums, 0.0) if self.machines == 1 else (0.0, sums)
        number = 2 if self.training.precision == "bf16" else 4
        # A layer is gathered again for its backward pass; the embeddings and heads stay.
        gathered = (2 * layers + others) * number * self.passes
        shards = self.gpus / self.machines
        inside = (1 - 1 / shards) * (gathered + updates + (layers + others) * 4)
        return inside, (1 - 1 / self.machines) * (layers + others) * 8 / shards

    def seconds(self, *, utilization: float) -> float:
        """Seconds of a step whose products reach this fraction of the peak; 1.0: the roofline.

        Products, what the memory moves besides, and what the ranks send, which overlaps with the
        last backward pass, two thirds of a pass.
        """
        peak = self.gpu.peak if self.training.precision == "bf16" else self.gpu.peak / 2
        traffic = self.cost.traffic * self.passes / self.gpu.bandwidth
        if self.training.compile is not False:
            traffic *= FUSED
        computing = self.flops / (peak * utilization) + traffic
        inside, between = self.sent
        sending = inside / self.gpu.link + between / self.gpu.network
        return computing + max(0.0, sending - computing / self.passes * 2 / 3)

    def _cost(self, rows: int) -> StepCost:
        return step_cost(self.model, self.training, self.data, rows=rows, passes=self.share // rows)


HEADER = (
    "GPU", "GPUs", "batch", "micro", "passes", "GB", "GFLOP/token", "MB sent", "ms at best",
    "tokens/s at best", "tokens/s guessed", "steps", "hours", "cost",
)  # fmt: skip
NOTES = (
    "computed   memory, operations and bytes: a step of eager kernels on rows of full length",
    "at best    products at the GPU's peak, all else at its memory's bandwidth (compiled: "
    f"{FUSED:.0%} of it)",
    f"guessed    products at {UTILIZATION:.0%} of the peak, {USABLE:.0%} of the memory",
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
        *dict.fromkeys(_memory_line(estimate) for estimate in estimates if estimate.rows),
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
        f"{sum(estimate.sent) / 1e6:,.0f}",
        f"{best * 1e3:,.1f}",
        f"{estimate.slots / best:,.0f}",
        f"{estimate.slots / guessed:,.0f}",
        f"{steps:,.0f}",
        f"{hours:,.1f}",
        "-" if price is None else f"{hours * price * estimate.gpus:,.2f}",
    )


def _memory_line(estimate: Estimate) -> str:
    cost, total = estimate.cost, estimate.memory(estimate.rows)
    others = cost.peak - cost.state
    among = f" on {counted(estimate.gpus, 'GPU')}" * (estimate.training.parallel == "fsdp")
    return (
        f"memory     micro-batch {estimate.rows}{among}: weights, moments and waiting gradients "
        f"{(total - others) / 1e9:.2f}, activations {others / 1e9:.2f} GB"
    )
