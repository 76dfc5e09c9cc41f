"""`clozeline pretrain --estimate`: what a run will need, before it starts and without its GPUs.

    bert-base, 8 H100  ->  memory, micro-batch size, operations, tokens a second, hours and cost

Memory and operations are counted in the real step (`fake_step.py`). Speed is bounded by a roofline:
the products at the GPU's peak, and everything else at the bandwidth of its memory. What a run
reaches is a guess, fitted to three models on one H200; what CUDA takes of the memory is another.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining, count_parameters
from clozeline.pipeline.commandline.config_options import config_or_usage_error
from clozeline.pipeline.common.units import counted, size_in_words
from clozeline.pipeline.dataset.manifest import Manifest, read_manifest
from clozeline.train.config import RAMP, PretrainConfig
from clozeline.train.data.loader import Loader
from clozeline.train.data.phases import DataPhase, find_phases
from clozeline.train.engine.distributed import World
from clozeline.train.engine.gpus import Gpu, gpu_named
from clozeline.train.pretraining.fake_step import PARTS, StepCost, step_cost
from clozeline.train.pretraining.plan import make_plan
from clozeline.train.pretraining.start import Start

#: Guesses. CUDA's context, its libraries and the allocator's holes take the rest of the memory.
USABLE = 0.9
#: The fraction of the peak that the products reach, and the fraction of the eager kernels' traffic
#: that a compiled step has. With these two the steps of `bert-base`, `nano` and `modern-small` take
#: 0.99, 0.99 and 0.94 of what they took on an H200 (docs/manual/results.md, "On a GPU").
UTILIZATION, FUSED = 0.42, 0.14
GPUS_OF_A_MACHINE = 8
EXAMPLES_READ = 20_000  # to see how fast the loader is
CUDA = torch.device("cuda", 0)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A run on `gpus` devices of one kind."""

    gpu: Gpu
    gpus: int
    model: BertConfig
    training: PretrainConfig
    manifest: Manifest
    phases: tuple[DataPhase, ...]

    @cached_property
    def rows(self) -> int:
        """Rows of a pass: as given, else the largest divisor of a rank's share that fits; or 0."""
        if isinstance(self.training.micro_batch_size, int):
            return self.training.rows_per_pass(self.gpus)
        room = USABLE * self.gpu.memory * 1e9
        bytes_of_row = (self._cost(2).peak - self._cost(1).peak) or 1
        limit = 1 + (1.1 * room - self._cost(1).peak) / bytes_of_row
        sizes = [n for n in range(self.share, 0, -1) if self.share % n == 0 and n <= limit]
        return next((n for n in sizes if self._cost(n).peak <= room), 0)

    @property
    def share(self) -> int:
        """Examples of a rank in each step."""
        return self.training.batch_size // self.gpus

    @property
    def cost(self) -> StepCost:
        """What a step with passes of `rows` needs."""
        return self._cost(self.rows)

    @property
    def passes(self) -> int:
        """Forward passes of a step and rank."""
        return self.share // self.rows

    @property
    def flops(self) -> float:
        """Operations of a step and rank."""
        return self.cost.pass_flops * self.passes + self.cost.optimizer_flops

    @property
    def slots(self) -> int:
        """Tokens of a step, with padding, over all ranks; the mean of the phases."""
        lengths = (share * x.batch_factor * x.max_seq_length for share, x in self._shares)
        return round(self.training.batch_size * sum(lengths))

    @property
    def sent(self) -> float:
        """Bytes that a rank sends in a step: a ring's sums, or FSDP2's gathers and sums."""
        ring = (self.gpus - 1) / self.gpus
        layers, others = _weights(self.model)
        if self.training.parallel == "fsdp":
            number = 2 if self.training.precision == "bf16" else 4
            # A layer is gathered again for its backward pass; the embeddings and heads stay.
            gathered = (2 * layers + others) * number * self.passes
            if self.training.optimizer == "muon":  # gathers matrices in bfloat16
                gathered += 2 * layers
            return ring * (gathered + (layers + others) * 4)
        return ring * (layers + others) * 8

    @property
    def at_best(self) -> float:
        """Seconds of a step by the roofline."""
        return self._seconds(utilization=1.0)

    @property
    def guessed(self) -> float:
        """Seconds of a step whose products reach a fraction of the peak."""
        return self._seconds(utilization=UTILIZATION)

    def _seconds(self, *, utilization: float) -> float:
        """Products, what the memory moves besides, and what the ranks send.

        Sending overlaps with the last backward pass, two thirds of a pass.
        """
        peak = self.gpu.peak if self.training.precision == "bf16" else self.gpu.peak / 2
        traffic = self.cost.traffic * self.passes / self.gpu.bandwidth
        if self.training.compile is not False:
            traffic *= FUSED
        computing = self.flops / (peak * utilization) + traffic
        link = self.gpu.link if self.gpus <= GPUS_OF_A_MACHINE else self.gpu.network
        return computing + max(0.0, self.sent / link - computing / self.passes * 2 / 3)

    @property
    def _shares(self) -> list[tuple[float, DataPhase]]:
        """The fraction of the run that each phase takes."""
        stops = [*(phase.start for phase in self.phases[1:]), 1.0]
        return [(x - phase.start, phase) for x, phase in zip(stops, self.phases, strict=True)]

    def _cost(self, rows: int) -> StepCost:
        """The memory of the phase that needs most, and the mean of the phases' operations."""
        costs = [(share, self._cost_of(phase, rows)) for share, phase in self._shares]
        return StepCost(
            parts=max((cost for _, cost in costs), key=lambda cost: cost.peak).parts,
            pass_flops=sum(share * cost.pass_flops for share, cost in costs),
            optimizer_flops=costs[0][1].optimizer_flops,
            traffic=sum(share * cost.traffic for share, cost in costs),
        )

    def _cost_of(self, phase: DataPhase, rows: int) -> StepCost:
        passes = 1 if rows == self.share else 2
        rows *= phase.batch_factor
        data = replace(
            self.manifest.config,
            max_seq_length=phase.max_seq_length,
            max_predictions_per_seq=phase.max_predictions,
        )
        form = *(getattr(self.training, name) for name in FORM), data.has_pairs, data.is_packed
        key = (self.model, rows, passes, phase.max_seq_length, phase.max_predictions, form)
        if key not in _MEASURED:
            _MEASURED[key] = step_cost(
                self.model, self.training, data, rows=rows, passes=passes, device=CUDA
            )
        cost = _MEASURED[key]
        if self.training.parallel == "fsdp":
            # By arithmetic, as autograd calls FSDP2's hooks; what is gathered is not counted.
            kept = {name: cost.parts[name] // self.gpus for name in PARTS[:3]}
            return replace(cost, parts=cost.parts | kept)
        return cost


#: What of the training config, besides the number of rows, decides about the cost of a step.
FORM = (
    "optimizer", "precision", "unpadded", "activation_checkpointing", "bf16_residual",
    "sampled_words",
)  # fmt: skip
_MEASURED: dict[tuple[object, ...], StepCost] = {}


def _weights(config: BertConfig) -> tuple[int, int]:
    """Numbers in the layers and elsewhere, with the vocabulary's padding, which is sent, too."""
    with torch.device("meta"):
        model = BertForPretraining(config)
    layers = sum(weight.numel() for weight in model.encoder.layers.parameters())
    return layers, sum(weight.numel() for weight in model.parameters()) - layers


def estimate_lines(
    shards: Path,
    start: Start,
    kinds: str,
    numbers: Sequence[int],
    price_per_hour: float | None,
    **chosen: Any,
) -> list[str]:
    """The report of the command, for each kind and number of GPUs.

    `chosen` as for `make_plan`: a recipe depends on the number of GPUs. Raises InputError.
    """
    gpus = [gpu_named(kind) for kind in kinds.split(",")]
    manifest = read_manifest(shards)
    given = chosen.pop("options")
    options = given | {"precision": given["precision"] or "bf16"}
    of_numbers = []
    for number in dict.fromkeys(numbers):
        plan = make_plan(manifest, start, World(0, number, CUDA), options=options, **chosen)
        training = config_or_usage_error(PretrainConfig, options | plan.values)
        training.accumulation(number)  # refuses what cannot be divided
        of_numbers.append(
            Estimate(
                gpu=gpus[0],
                gpus=number,
                model=plan.model,
                training=training,
                manifest=manifest,
                phases=find_phases(shards, manifest, training),
            )
        )
    estimates = [replace(one, gpu=gpu) for gpu in gpus for one in of_numbers]
    return _report(estimates, shards, price_per_hour)


def _report(estimates: Sequence[Estimate], shards: Path, price: float | None) -> list[str]:
    """A table with a line for each estimate, the parts of memory, data, and what is a guess."""
    model, data = estimates[0].model, estimates[0].manifest.config
    rows = [HEADER, *(_row(estimate, price) for estimate in estimates)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(x.rjust(n) for x, n in zip(row, widths, strict=True)) for row in rows]
    return [
        f"model      {count_parameters(model):,} parameters, examples of {data.max_seq_length} "
        "tokens; nothing runs and nothing is written",
        *table,
        *_memory_lines(estimates),
        *_data_lines(estimates, shards),
        *GUESSES,
    ]


HEADER = (
    "GPU", "GPUs", "batch", "micro", "passes", "GB", "GFLOP/token", "MB sent", "ms at best",
    "tokens/s at best", "tokens/s guessed", "steps", "hours", "cost",
)  # fmt: skip
GUESSES = (
    "counted    memory, operations and bytes: the real step, eager kernels, rows of full length; "
    "a compiled step needs less memory",
    "at best    products at the GPU's peak, then all else at its memory's bandwidth, "
    f"{FUSED:.0%} of it where the step is compiled",
    f"guessed    products at {UTILIZATION:.0%} of the peak, as on an H200; "
    f"{1 - USABLE:.0%} of the memory for CUDA itself;",
    f"           {GPUS_OF_A_MACHINE} GPUs a machine, each with its share of the network",
)


def _row(estimate: Estimate, price: float | None) -> tuple[str, ...]:
    """A line of the table; dashes where not even one row fits."""
    training = estimate.training
    start = estimate.gpu.name, str(estimate.gpus), str(training.batch_size)
    if not estimate.rows:
        return (*start, "0", *["-"] * (len(HEADER) - 4))
    best, guessed = estimate.at_best, estimate.guessed
    hours = guessed * training.whole_batches / 3600  # a smaller batch takes less time
    steps = f"{training.max_steps:,}"
    if training.budget:
        hours, batches = training.budget / 3600, training.budget / guessed
        steps = f"{batches * (1 + training.batch_ramp * (mean(RAMP) - 1)):,.0f}"
    return (
        *start,
        str(estimate.rows),
        str(estimate.passes),
        f"{estimate.cost.peak / 1e9:.1f}",
        f"{estimate.flops * estimate.gpus / estimate.slots / 1e9:.3f}",
        f"{estimate.sent / 1e6:,.0f}",
        f"{best * 1e3:,.1f}",
        f"{estimate.slots / best:,.0f}",
        f"{estimate.slots / guessed:,.0f}",
        steps,
        f"{hours:,.1f}",
        "-" if price is None else f"{hours * price * estimate.gpus:,.2f}",
    )


def _memory_lines(estimates: Sequence[Estimate]) -> list[str]:
    """The parts of a rank's memory at its fullest, a line for each micro-batch size.

    Under FSDP2 they depend on the number of GPUs, too.
    """
    found: dict[tuple[int, bool, str], dict[str, int]] = {}
    for e in estimates:
        among = f" on {counted(e.gpus, 'GPU')}" if e.training.parallel == "fsdp" else ""
        if e.rows:
            found[e.rows, e.passes > 1, among] = e.cost.parts
    return [
        f"memory     micro-batch {rows}{among}: "
        + ", ".join(f"{part} {size / 1e9:.2f}" for part, size in parts.items())
        + " GB"
        for (rows, _, among), parts in found.items()
    ]


def _data_lines(estimates: Sequence[Estimate], shards: Path) -> list[str]:
    """The size of the shards, and what a rank of the fastest run reads and needs to read it."""
    manifest = estimates[0].manifest
    entries = manifest.of_split("train")
    size, examples = sum(e.bytes for e in entries), manifest.num_examples("train")
    line = (
        f"data       {counted(len(entries), 'shard')}, {size_in_words(size)}, {examples:,} examples"
    )
    running = [e for e in estimates if e.rows]
    if not running:
        return [line]
    rate = max(e.share / e.guessed for e in running)
    cores = rate * _loader_seconds(shards, estimates[0].training)
    read = rate * size / examples
    return [
        f"{line}; a rank reads at most {read / 1e6:,.2f} MB/s, with {cores:.2f} loader cores as "
        "fast as this one"
    ]


def _loader_seconds(shards: Path, training: PretrainConfig) -> float:
    """Processor seconds that the real loader takes here for an example."""
    rows = min(training.batch_size, 256)
    loader = Loader(
        shards,
        batch_size=rows,
        seed=training.seed,
        remask=training.remask,
        unpadded=training.unpadded,
        prefetch=0,
    )
    passes, start = -(-EXAMPLES_READ // rows), time.process_time()
    batches = iter(loader)
    for _ in range(passes):
        next(batches)
    batches.close()
    return (time.process_time() - start) / (passes * rows)
