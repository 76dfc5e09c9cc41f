"""`pretrain --profile STEPS`: what a step of training spends its time on.

RUN/profile/trace.json         for chrome://tracing or ui.perfetto.dev
RUN/profile/operations.txt     the ten most expensive operations
"""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.run import PROFILE, PROFILE_FILES
from clozeline.train.config import PretrainConfig

TRACE, OPERATIONS = PROFILE_FILES
SKIPPED = 3  # compilation, warm-up of kernels and of the profiler
ROWS = 10


def check_profile(steps: int, training: PretrainConfig, done: int) -> None:
    """Raises InputError where a new run ends before its last profiled step.

    A run with `done` steps continues: a restart repeats the command of the new run.
    """
    if steps and not done and training.budget is None and training.max_steps < SKIPPED + steps:
        raise InputError(
            f"--profile {steps} needs {SKIPPED + steps} steps, since the first {SKIPPED} are left "
            f"out, and --max-steps is {training.max_steps}; give more steps, or profile fewer."
        )


def profiler(run: Path, *, steps: int, device: torch.device) -> profile:
    """A context that profiles `steps` steps after the first three; its `step` ends each of them."""
    folder, is_cuda = run / PROFILE, device.type == "cuda"

    def write(profiled: profile) -> None:
        folder.mkdir(exist_ok=True)
        profiled.export_chrome_trace(str(folder / TRACE))
        order = "self_cuda_time_total" if is_cuda else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=order, row_limit=ROWS)
        (folder / OPERATIONS).write_text(table + "\n")

    return profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])],
        schedule=schedule(wait=0, warmup=SKIPPED, active=steps, repeat=1),
        on_trace_ready=write,
    )
