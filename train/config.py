"""How a model is pretrained: everything besides the shards and the architecture."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from pipeline.errors import InputError

Schedule = Literal["linear", "cosine", "wsd", "constant"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """The choices of `clozeline pretrain`; every checkpoint carries them."""

    #: Examples of a step, over all processes.
    batch_size: int = 128
    #: Examples of one forward pass of one process; not given: its whole part of the batch.
    micro_batch_size: int | None = None
    #: Steps of the whole run.
    max_steps: int = 1000
    #: Highest learning rate.
    learning_rate: float = 1e-3
    #: The share of steps in which the learning rate rises.
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
    #: Draw new masks from the second epoch on.
    remask: bool = True
    #: Steps between two lines of metrics.
    log_every: int = 10
    #: Steps between two looks at the validation shards; 0: only at the end.
    eval_every: int = 0
    #: Validation examples of one look at most; 0: all.
    eval_examples: int = 2048
    #: Steps between two checkpoints; 0: only at the end.
    save_every: int = 500
    #: Newest checkpoints to keep; the best on held-out examples is kept besides.
    keep: int = 2
    #: Of the first weights, of dropout and of the order of the data.
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_steps", "log_every", "keep"):
            _at_least(name, getattr(self, name), 1)
        if self.micro_batch_size is not None:
            _at_least("micro_batch_size", self.micro_batch_size, 1)
        for name in ("eval_every", "eval_examples", "save_every", "clip", "weight_decay", "seed"):
            _at_least(name, getattr(self, name), 0)
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; give more than 0.")
        for name in ("warmup", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it lies in [0, 1).")
        for name, kind in (("schedule", Schedule), ("precision", Precision)):
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {known}.")

    def accumulation(self, world_size: int) -> int:
        """Forward passes of a step in each of `world_size` processes.

        Raises InputError, with the sizes that would do, where the parts are not equal.
        """
        if self.batch_size % world_size:
            raise InputError(
                f"batch_size {self.batch_size} does not divide among {world_size} processes; "
                f"{_neighbours(self.batch_size, world_size)} would."
            )
        part = self.batch_size // world_size
        micro = self.micro_batch_size or part
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
