"""`pretrain --profile STEPS`: what a step of training spends its time on.

RUN/profile/trace.json         for chrome://tracing or ui.perfetto.dev
RUN/profile/operations.txt     the ten most expensive operations
"""

from pathlib import Path
from typing import Self

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from clozeline.train.artifacts.run import PROFILE, PROFILE_FILES

TRACE, OPERATIONS = PROFILE_FILES
SKIPPED = 3  # compilation, warm-up of kernels and of the profiler
ROWS = 10


class StepProfile:
    """Profiles `steps` steps of a process after its first three; a context."""

    def __init__(self, run: Path, *, steps: int, device: torch.device) -> None:
        self._folder = run / PROFILE
        self._is_cuda = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_cuda else [])]
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=SKIPPED, active=steps, repeat=1),
            on_trace_ready=self._write,
        )

    def __enter__(self) -> Self:
        self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._profile.stop()

    def step(self) -> None:
        """Mark the end of a step."""
        self._profile.step()

    def _write(self, profiled: profile) -> None:
        self._folder.mkdir(exist_ok=True)
        profiled.export_chrome_trace(str(self._folder / TRACE))
        order = "self_cuda_time_total" if self._is_cuda else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=order, row_limit=ROWS)
        (self._folder / OPERATIONS).write_text(table + "\n")
