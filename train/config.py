"""How a model is pretrained: everything besides the shards and the architecture."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from pipeline.common.errors import InputError

Schedule = Literal["linear", "cosine", "wsd", "constant"]
Precision = Literal["fp32", "bf16"]
Optimizer = Literal["adamw", "muon"]
Parallel = Literal["ddp", "fsdp"]

#: What the batch is divided by in the equal parts of a ramp, one after the other.
RAMP = (8, 4, 2)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """The choices of `clozeline pretrain`; every checkpoint carries them."""

    #: Examples of a step, over all processes.
    batch_size: int = 128
    #: Examples of one forward pass of one process; not given: its whole part of the batch.
    micro_batch_size: int | None = None
    #: The share of the run in which the batch grows: an eighth, a quarter, half of its size.
    batch_ramp: float = 0.0
    #: Steps of the whole run; with --for the clock decides instead.
    max_steps: int = 1000
    #: Time of the whole run, as in 30m, 1h30m or 2d; the schedule goes by the clock.
    for_: str | None = None
    #: `muon`: for the matrices of the layers; AdamW for all the rest.
    optimizer: Optimizer = "adamw"
    #: Highest learning rate.
    learning_rate: float = 1e-3
    #: The share of the run in which the learning rate rises.
    warmup: float = 0.06
    #: After the warm-up: `wsd` stays and falls in the last fifth.
    schedule: Schedule = "linear"
    #: Of weight matrices; never of norms and biases.
    weight_decay: float = 0.01
    #: Decay of AdamW's first moment.
    beta1: float = 0.9
    #: Decay of AdamW's second moment.
    beta2: float = 0.98
    #: Gradient norm at most; 0: no clipping.
    clip: float = 1.0
    #: `bf16`: autocast of the matrix products.
    precision: Precision = "fp32"
    #: Compile the model with torch.compile; not given: on CUDA only.
    compile: bool | None = None
    #: Several processes: `ddp` has the whole model in each, `fsdp` a part of it.
    parallel: Parallel = "ddp"
    #: Draw new masks from the second epoch on.
    remask: bool = True
    #: Global batches whose rows are sorted by length, so that batches are narrow; 0: none are.
    length_bins: int = 0
    #: Train on rows without padding, one after the other.
    unpadded: bool = False
    #: Compare the sha256 of each shard with the manifest's when it is first read.
    check_shards: bool = False
    #: Go on without the training shards that are bad; all are read once to know which.
    skip_bad_shards: bool = False
    #: Steps between two lines of metrics.
    log_every: int = 10
    #: Steps between two looks at the validation shards; not given: before each checkpoint;
    #: 0: only at the end.
    eval_every: int | None = None
    #: Validation examples of one look at most; 0: all.
    eval_examples: int = 2048
    #: Steps between two checkpoints; 0: only at the end.
    save_every: int = 500
    #: Newest checkpoints to keep; the best of those looked at is kept besides.
    keep: int = 2
    #: Of the first weights, of dropout and of the order of the data.
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_steps", "log_every", "keep"):
            _at_least(name, getattr(self, name), 1)
        for name, low in (("micro_batch_size", 1), ("eval_every", 0)):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), low)
        for name in ("eval_examples", "save_every", "clip", "weight_decay", "seed", "length_bins"):
            _at_least(name, getattr(self, name), 0)
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; give more than 0.")
        for name in ("warmup", "beta1", "beta2", "batch_ramp"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it lies in [0, 1).")
        self._check_choices()
        if self.batch_ramp and self.length_bins:
            raise ValueError(
                "batch_ramp changes the size of the batch, which length_bins forbid: the order of "
                "the data depends on it. Give one of the two."
            )
        if self.batch_ramp and self.batch_size % RAMP[0]:
            raise ValueError(
                f"batch_size {self.batch_size} has no whole eighth for batch_ramp to start with; "
                f"{_neighbours(self.batch_size, RAMP[0])} has."
            )
        if self.budget is not None and self.budget <= 0:
            raise ValueError(f"for is {self.for_!r}; give more than no time.")

    def _check_choices(self) -> None:
        kinds = {
            "schedule": Schedule,
            "precision": Precision,
            "optimizer": Optimizer,
            "parallel": Parallel,
        }
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {known}.")
        if self.optimizer == "muon" and self.parallel == "fsdp":
            raise ValueError(
                "optimizer muon needs whole matrices, and parallel fsdp cuts them; give parallel "
                "ddp, or optimizer adamw."
            )

    @property
    def budget(self) -> float | None:
        """Seconds of the whole run, or None where steps are counted."""
        return None if self.for_ is None else _seconds(self.for_)

    @property
    def batch_sizes(self) -> list[int]:
        """The sizes of the global batch in the course of the run."""
        ramp = [self.batch_size // part for part in RAMP] if self.batch_ramp else []
        return [*ramp, self.batch_size]

    def accumulation(self, world_size: int, batch_size: int | None = None) -> int:
        """Forward passes of a step in each of `world_size` processes.

        While the batch is small (`batch_size` is given), so may be a pass. Raises InputError, with
        the sizes that would do, where the parts are not equal.
        """
        total = batch_size or self.batch_size
        if total % world_size:
            raise InputError(
                f"batch_size {total} does not divide among {world_size} processes; "
                f"{_neighbours(total, world_size)} would."
            )
        part = total // world_size
        micro = self.micro_batch_size or part
        if total < self.batch_size:
            micro = min(micro, part)
        if part % micro:
            fitting = ", ".join(str(n) for n in range(1, part + 1) if part % n == 0)
            raise InputError(
                f"micro_batch_size {self.micro_batch_size} does not divide the {part} examples of "
                f"each process; one of {fitting} would."
            )
        return part // micro

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the checkpoint stores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**values)


def _at_least(name: str, found: float, low: float) -> None:
    if found < low:
        raise ValueError(f"{name} is {found}; give at least {low}.")


def _neighbours(size: int, divisor: int) -> str:
    below = size // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def _seconds(text: str) -> float:
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if "".join(map("".join, parts)) != text or not parts:
        raise ValueError(f"for is {text!r}; give a time, as in 90s, 30m, 1h30m or 2d.")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)
