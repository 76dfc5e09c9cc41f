"""Whether `torch.compile` can build its kernels here, and where it should not."""

import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch

from clozeline.train.engine.distributed import World

#: The variable and the commands by which Triton (C) and torch (C++ for CPU) find a compiler.
COMPILERS = {"cuda": ("CC", ("gcc", "clang", "cc")), "cpu": ("CXX", ("g++", "clang++"))}


def resolve_compile(wanted: bool | None, world: World, *, warn: bool = True) -> bool:
    """Whether to compile: as `wanted`, by default only on CUDA.

    Where that is not possible this is False, and rank 0 prints a warning unless `warn` is False.
    """
    is_wanted = world.device.type == "cuda" if wanted is None else wanted
    missing = missing_compiler(world.device) if is_wanted else None
    if missing and warn and world.is_main:
        print(
            f"warning: torch.compile needs {missing}, which is not installed; training runs "
            "without it, more slowly. Install it, or give --no-compile.",
            file=sys.stderr,
        )
    return is_wanted and missing is None


def missing_compiler(device: torch.device) -> str | None:
    """What `torch.compile` lacks on this machine; None where it has everything."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, names = COMPILERS[device.type]
    commands = [os.environ[variable]] if os.environ.get(variable) else list(names)
    if any(shutil.which(command.split()[0]) for command in commands):
        return None
    return f"a compiler ({' or '.join(commands)})"


def without_compiler() -> AbstractContextManager[object]:
    """A context in which a compiled model runs eagerly.

    For batches of other shapes than those of training: with a second shape, the compiler makes code
    for all of them, which is slower; on an H200, torch 2.11 also failed at that.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled; the import takes a second
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
