"""The pretraining config: everything but the shards and the architecture."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal, Self, get_args

import click

from clozeline.pipeline.commandline.config_options import chosen_fields, chosen_option, option
from clozeline.pipeline.common.config_checks import (
    check_at_least,
    check_between,
    check_choices,
    check_field_names,
    check_fraction,
    check_positive,
    check_types,
    checks_keywords,
    seconds,
)
from clozeline.pipeline.common.errors import InputError, OptionError

#: `auto` is bf16 where the device has it (`train/engine/precision.py`).
Precision = Literal["auto", "fp32", "bf16"]
Optimizer = Literal["adamw", "muon"]
Schedule = Literal["linear", "cosine", "wsd", "wsd-sqrt", "constant"]
#: A value of --schedule: the decay of `wsd` or `wsd-sqrt` from a step of another run.
COOL_DOWN = "cool-down"
Truncate = Literal["end", "start", "middle"]  # what a text of too many tokens loses

FRACTION = re.compile(r"[0-9]*\.?[0-9]+")
LARGEST_LEARNING_RATE = 1e30  # an update may be 1e8 times as large, and must be a float32

_recipe = partial(chosen_option, group="Training")
_training = partial(option, group="Training")
_speed = partial(option, group="Speed and memory")
_data = partial(option, group="Data")
_metrics = partial(option, group="Metrics and checkpoints")


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """The options of `clozeline pretrain`, resolved; kept in run.json.

    >>> PretrainConfig.from_dict(load_run("work/run")[0].training.to_dict()).max_steps
    4
    """

    batch_size: int = _recipe("Examples per step, over all processes.")
    micro_batch_size: int | None = _speed(
        None,
        "Examples per forward pass and process; defaults to the process's whole share of the "
        "batch.",
    )
    max_steps: int = _recipe("Training steps; or limit the run by time, with --for.")
    for_: str | None = _training(
        None,
        "Time budget, such as 30m, 1h30m or 2d; the schedule follows the elapsed time. When "
        "a run counted in steps is resumed, time and schedule start at 0.",
    )
    optimizer: Optimizer = _recipe(
        "`muon` trains the layers' weight matrices and leaves everything else to AdamW."
    )
    learning_rate: float = _recipe("Peak learning rate.")
    warmup: float = _recipe("Fraction of the run in which the learning rate warms up.")
    schedule: Schedule = _recipe(
        "Learning rate after the warm-up; `wsd` stays constant and falls linearly at the end; "
        "`wsd-sqrt` falls there as 1 - sqrt(x), faster at first; `cool-down` is for --from "
        "RUN@STEP.",
        type=click.Choice([*get_args(Schedule), COOL_DOWN]),
    )
    cool_down: float = _recipe(
        "Fraction of the run after the warm-up in which `wsd` and `wsd-sqrt` lower the learning "
        "rate to 0."
    )
    weight_decay: float = _recipe("Weight decay, of matrices only.")
    beta1: float = _recipe("Decay rate of AdamW's first moment.")
    beta2: float = _recipe("Decay rate of AdamW's second moment.")
    clip: float = _recipe("Maximum gradient norm; 0 turns it off.")
    word_vectors: bool = _recipe(
        "Initialize a new model's word embeddings from co-occurrence counts of SHARDS (PPMI, SVD)."
    )
    sampled_words: int = _recipe("Words in the softmax of a training step; 0 takes all.")
    precision: Precision = _recipe(
        "`bf16` runs matrix products in bfloat16 (autocast); `auto` does where that is native.",
        group="Speed and memory",
    )
    compile: bool | None = _speed(
        None, "Compile the model with torch.compile; by default only on CUDA."
    )
    deterministic: bool = _speed(
        False,
        "Use only deterministic kernels, which may be slower. Runs on the same devices, versions, "
        "processes and threads then have the same bits. Not with --for.",
    )
    parallel: Literal["ddp", "fsdp"] = _speed(
        "ddp", "With several processes, `ddp` replicates the model and `fsdp` shards it."
    )
    phase: tuple[str, ...] = _data(
        (),
        "Read these shards first, for this fraction of the run, then SHARDS. Examples may get "
        "longer, not shorter. Repeatable, in order.",
        metavar="SHARDS@FRACTION",
    )
    masked_lm_prob: float | None = _data(
        None,
        "Fraction of tokens to mask, with new masks in the first epoch, too. By default as in the "
        "shards.",
    )
    length_bins: int = _data(
        0, "Sort the rows of N global batches by length to reduce padding; 0 disables sorting."
    )
    unpadded: bool | None = _data(
        None,
        "Concatenate the rows of a batch instead of padding them; by default on CUDA in bf16, "
        "where attention has no dropout.",
    )
    log_every: int = _metrics(10, "Log metrics every N steps.")
    eval_every: int | None = _metrics(
        None,
        "Evaluate every N steps; by default before each checkpoint; 0 evaluates only at the end.",
    )
    eval_examples: int = _metrics(2048, "Maximum validation examples per evaluation; 0 uses all.")
    save_every: int = _metrics(500, "Save a checkpoint every N steps; 0 saves only at the end.")
    keep: int = _metrics(2, "Recent checkpoints to keep, in addition to the best one.")
    seed: int = _training(0, "Random seed of the initial weights, dropout and data order.")

    def __post_init__(self) -> None:
        if not isinstance(self.phase, tuple | list):
            raise OptionError(
                f"phase is {self.phase!r}; give a tuple of texts, such as ('work/64@0.5',)."
            )
        check_between("batch_size", self.batch_size, 1, 1 << 20)
        for name in ("length_bins", "sampled_words"):
            check_between(name, getattr(self, name), 0, 1 << 20)
        for name in ("max_steps", "log_every", "keep"):
            check_at_least(name, getattr(self, name), 1)
        check_between("max_steps", self.max_steps, 1, 1 << 40)
        for name, low in (("micro_batch_size", 1), ("eval_every", 0)):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), low)
        for name in ("eval_examples", "save_every", "clip", "weight_decay"):
            check_at_least(name, getattr(self, name), 0)
        check_between("seed", self.seed, 0, (1 << 63) - 1)
        check_positive("learning_rate", self.learning_rate, most=LARGEST_LEARNING_RATE)
        check_positive("cool_down", self.cool_down)
        check_between("cool_down", self.cool_down, 0, 1)
        for name in ("warmup", "beta1", "beta2"):
            check_fraction(name, getattr(self, name))
        check_choices(self)
        if self.masked_lm_prob is not None:
            check_between("masked_lm_prob", self.masked_lm_prob, 0.01, 1.0)
        _ = phase_starts(self.phase), self.budget  # raise ValueError for bad texts
        if self.deterministic and self.for_ is not None:
            raise OptionError(
                "deterministic excludes a time budget, by which the learning rate follows elapsed "
                "time; use max_steps."
            )

    @property
    def budget(self) -> float | None:
        """The time budget in seconds, or None if `max_steps` ends the run."""
        return None if self.for_ is None else seconds(self.for_, name="for")

    def accumulation(self, world_size: int) -> int:
        """Forward passes per step in each of `world_size` processes.

        Raises InputError, with sizes that work, if the batch cannot be divided equally.
        """
        if self.batch_size % world_size:
            raise InputError(
                f"--batch-size {self.batch_size} cannot be divided among {world_size} processes; "
                f"use {_neighbours(self.batch_size, world_size)}."
            )
        part = self.batch_size // world_size
        micro = self.micro_batch_size or part
        if part % micro:
            fitting = ", ".join(str(n) for n in range(1, part + 1) if part % n == 0)
            raise InputError(
                f"the {part} examples of each process are not divisible by --micro-batch-size "
                f"{self.micro_batch_size}; use one of {fitting}."
            )
        return part // micro

    def rows_per_pass(self, world_size: int) -> int:
        """Examples per forward pass and process."""
        return self.micro_batch_size or self.batch_size // world_size

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the checkpoint stores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config that was stored; raises ValueError for that of another version."""
        check_field_names(cls, values)
        config = cls(**values | {"phase": tuple(values["phase"])})
        check_types(config)
        return config


#: The fields that the command chooses where they are not given.
RECIPE_FIELDS = chosen_fields(PretrainConfig)
#: The fields that a resumed run keeps where they are not given.
KEPT_FIELDS = (
    *("for_", "phase", "masked_lm_prob", "seed", "length_bins", "unpadded"),
    *("save_every", "keep", "log_every", "eval_examples"),
)


def phase_starts(phases: Sequence[str]) -> list[tuple[float, str | None]]:
    """The fraction of the run at which each data set begins, and its folder; SHARDS, None, is last.

        >>> phase_starts(["work/64@0.6", "work/128"])
        [(0.0, 'work/64'), (0.6, 'work/128'), (0.8, None)]

    Those without a fraction, SHARDS among them, share what the others leave, equally. Raises
    ValueError for fractions that do not make up a run.
    """
    split, given = [_with_fraction(phase) for phase in phases], ", ".join(phases)
    fractions = [fraction for _, fraction in split if fraction is not None]
    if not all(folder for folder, _ in split):
        raise OptionError(f"phase is {given!r}; one of its parts is empty, so leave that out.")
    if any(not 0 < fraction < 1 for fraction in fractions):
        raise OptionError(
            f"phase is {given!r}; a fraction, after the last @ of a part, must be above 0 and "
            "below 1."
        )
    if (total := sum(fractions)) > 1 - 1e-6:
        raise OptionError(f"phase is {given!r}; its fractions leave nothing for the other parts.")
    length = (1 - total) / (len(split) - len(fractions) + 1)
    ends = accumulate(length if fraction is None else fraction for _, fraction in split)
    starts = [0.0, *(round(end, 9) for end in ends)]
    return list(zip(starts, [*(folder for folder, _ in split), None], strict=True))


def _with_fraction(phase: str) -> tuple[str, float | None]:
    """ "work/64@0.5" -> ("work/64", 0.5); what follows the last @ may also belong to the folder."""
    folder, at, fraction = phase.rpartition("@")
    return (folder, float(fraction)) if at and FRACTION.fullmatch(fraction) else (phase, None)


def effective_fields(schedule: str) -> tuple[str, ...]:
    """Those of RECIPE_FIELDS that change a run with this schedule: `wsd` alone has a cool-down."""
    return tuple(x for x in RECIPE_FIELDS if x != "cool_down" or schedule.startswith("wsd"))


def _neighbours(size: int, divisor: int) -> str:
    below = size // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)
