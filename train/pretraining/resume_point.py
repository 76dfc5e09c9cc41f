"""The state of training before the first step of a process, as `find_resume_point` finds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clozeline.train.artifacts.checkpoint import TrainState


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The state of training before the first step of this process."""

    state: TrainState
    checkpoint: Path | None = None  # has the weights; None: they come from `init` or the seed
    init: Path | None = None  # a Hugging Face folder
    has_moments: bool = True  # the checkpoint's moments fit the optimizer
    is_complete: bool = False  # there is nothing left to do
    #: The checkpoints after this one, which cannot be read, and why.
    damaged: Mapping[Path, str] = field(default_factory=dict)
    started_from: str | None = None  # see RunConfig
    trained_positions: int | None = None  # of the checkpoint, where that is not all of them
