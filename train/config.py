"""How a model is pretrained: everything besides the shards and the architecture."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from pipeline.common.config_options import option
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

    batch_size: int = option(128, "Examples per step, over all processes.")
    micro_batch_size: int | None = option(
        None,
        "Examples per forward pass and process; defaults to the process's whole share of the "
        "batch.",
    )
    batch_ramp: float = option(
        0.0,
        "Fraction of the run in which the batch grows: an eighth, a quarter, then half of its "
        "full size.",
    )
    max_steps: int = option(1000, "Training steps; ignored with --for.")
    for_: str | None = option(
        None, "Time budget, such as 30m, 1h30m or 2d; the schedule follows the elapsed time."
    )
    optimizer: Optimizer = option(
        "adamw", "`muon` trains the layers' weight matrices and leaves everything else to AdamW."
    )
    learning_rate: float = option(1e-3, "Peak learning rate.")
    warmup: float = option(0.06, "Fraction of the run in which the learning rate warms up.")
    schedule: Schedule = option(
        "linear",
        "Learning rate after the warm-up; `wsd` stays constant and decays in the last fifth.",
    )
    weight_decay: float = option(0.01, "Weight decay of matrices; norms and biases have none.")
    beta1: float = option(0.9, "Decay rate of AdamW's first moment.")
    beta2: float = option(0.98, "Decay rate of AdamW's second moment.")
    clip: float = option(1.0, "Maximum gradient norm; 0 disables clipping.")
    precision: Precision = option("fp32", "`bf16` runs matrix products in bfloat16 (autocast).")
    compile: bool | None = option(
        None, "Compile the model with torch.compile; by default only on CUDA."
    )
    parallel: Parallel = option(
        "ddp", "With several processes, `ddp` replicates the model and `fsdp` shards it."
    )
    remask: bool = option(True, "Draw new masks from the second epoch on.")
    length_bins: int = option(
        0, "Sort the rows of N global batches by length to reduce padding; 0 disables sorting."
    )
    unpadded: bool = option(False, "Concatenate the rows of a batch instead of padding them.")
    check_shards: bool = option(
        False, "Check the sha256 of each shard against the manifest when it is first read."
    )
    skip_bad_shards: bool = option(
        False,
        "Train without the shards that are damaged; reads every shard once at the start to find "
        "them.",
    )
    log_every: int = option(10, "Log metrics every N steps.")
    eval_every: int | None = option(
        None,
        "Evaluate every N steps; defaults to before each checkpoint, 0 evaluates only at the end.",
    )
    eval_examples: int = option(2048, "Maximum validation examples per evaluation; 0 uses all.")
    save_every: int = option(500, "Save a checkpoint every N steps; 0 saves only at the end.")
    keep: int = option(2, "Recent checkpoints to keep, in addition to the best one.")
    seed: int = option(0, "Random seed of the initial weights, dropout and data order.")

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
