"""The number format of a forward pass, the seed of its dropout, and the choice of kernels.

Also whether `torch.compile` can build kernels here, and where it should not.
"""

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from clozeline.model.attention import Packing, attend
from clozeline.model.config import BertConfig
from clozeline.pipeline.common.counter_rng import random_bits, stream_key
from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.train.engine.distributed import World


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16, or everything in float32."""
    is_wanted = precision == "bf16"
    return torch.autocast(device.type, dtype=torch.bfloat16) if is_wanted else nullcontext()


def resolve_precision(precision: str, device: torch.device) -> Literal["fp32", "bf16"]:
    """`auto` as "bf16" where the device multiplies bfloat16 natively, else as "fp32".

    On 2 cores with AVX-512 BF16 a step of `nano` takes 0.37 times as long as in float32.
    """
    is_bf16 = _has_bf16(device) if precision == "auto" else precision == "bf16"
    return "bf16" if is_bf16 else "fp32"


def resolve_unpadded(
    wanted: bool | None, model: BertConfig, *, precision: str, device: torch.device
) -> bool:
    """Whether rows are concatenated: as `wanted`, by default where a kernel is made for that.

    CUDA has one for bf16, without dropout. Raises InputError where rows are to be concatenated
    there and attention has dropout.
    """
    has_kernel = device.type == "cuda" and precision == "bf16"
    dropout = model.attention_probs_dropout_prob
    if wanted and has_kernel and dropout:
        raise InputError(
            "--unpadded: attention over unpadded rows has no dropout on CUDA, but the model uses "
            f"{dropout}; give --dropout 0 or --no-unpadded."
        )
    if wanted is None:
        return has_kernel and not dropout and model.head_size in range(8, 257, 8)
    return wanted


def products_dtype(world: World) -> torch.dtype:
    """bfloat16 where the devices of all processes have products of it, else float32."""
    has_bf16 = world.min(int(_has_bf16(world.device)))
    return torch.bfloat16 if has_bf16 else torch.float32


def _has_bf16(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices are faster than those of float32 ones.

    A CPU without such instructions takes many times as long: an update of `nano` by Muon 23 times
    (`tests/benchmarks/cpu_kernels_speed.py`; two cores of an AMD EPYC, Zen 1).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    cpu = torch.cpu
    is_native = cpu._is_amx_tile_supported() or cpu._is_avx512_bf16_supported()
    return device.type == "cpu" and bool(is_native)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Seed torch from (seed, step, rank) alone, so there is no generator state to save."""
    bits = random_bits(stream_key(seed, "dropout", step), rank)
    torch.manual_seed(int(bits) >> 1)


#: cuBLAS chooses its algorithms by what else runs, unless its workspace is fixed.
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


@contextmanager
def deterministic_kernels(is_wanted: bool) -> Iterator[None]:
    """Where wanted, let torch use deterministic algorithms only, in this block.

    Begin it before the first matrix product on a GPU. Raises InputError where torch has only an
    algorithm that is not deterministic.
    """
    if not is_wanted:
        yield
        return
    os.environ.setdefault(*WORKSPACE)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise InputError(
            f"--deterministic: {one_line(error)} Leave the option out on this device."
        ) from error
    finally:
        torch.use_deterministic_algorithms(before)


#: FlashAttention by torch's names, newest first, and the generations of GPUs that it is made for.
FLASH_ATTENTION = {"FA4": (9, 10), "FA3": (9,)}


@contextmanager
def newest_flash_attention(
    model: BertConfig, device: torch.device, *, is_wanted: bool
) -> Iterator[str | None]:
    """Let torch use FlashAttention 4, else 3, in this block; yields "FA4", "FA3" or None.

    Where a package with it is installed (flash-attn-4, flash-attn-3) that works, on a Hopper or
    Blackwell GPU and without dropout in attention. Its backward pass is not deterministic.
    """
    chosen = None
    if is_wanted and device.type == "cuda" and not model.attention_probs_dropout_prob:
        chosen = _activate_flash_attention(model, device)
    try:
        yield chosen
    finally:
        if chosen:
            torch.nn.attention.restore_flash_attention_impl()


def _activate_flash_attention(model: BertConfig, device: torch.device) -> str | None:
    """Activate the newest that is installed; returns its name, or None.

    A head must have a size of 8, 16, ... 128.
    """
    generation, _ = torch.cuda.get_device_capability(device)
    for name, generations in FLASH_ATTENTION.items():
        if generation in generations and model.head_size in range(8, 129, 8):
            with suppress(ImportError, AttributeError, RuntimeError, ValueError):  # not there
                torch.nn.attention.activate_flash_attention_impl(name)
                if _has_working_attention(model, device):
                    return name
                torch.nn.attention.restore_flash_attention_impl()
    return None


def _has_working_attention(model: BertConfig, device: torch.device) -> bool:
    """Whether a forward and a backward pass over eight tokens work, in global and local layers.

    Some versions of the packages return other values than torch expects, or have no backward pass
    for unpadded rows on this GPU.
    """
    starts = torch.tensor([0, 3, 8], dtype=torch.int32, device=device)
    position_ids = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4], device=device)
    packing = Packing(position_ids, starts, max_seqlen=8)
    heads = model.num_attention_heads, model.head_size
    for window in {None if model.is_global(i) else 2 for i in range(model.num_hidden_layers)}:
        qkv = torch.ones(8, 3, *heads, dtype=torch.bfloat16, device=device, requires_grad=True)
        try:
            attend(qkv, packing, dropout_prob=0.0, window=window).sum().backward()
        except Exception:  # the package may raise anything
            return False
    return True


#: How many versions of a function torch compiles before it runs it eagerly; torch's own is 8.
RECOMPILE_LIMIT = 32
#: The variable and the commands by which Triton (C) and torch (C++ for CPU) find a compiler.
COMPILERS = {"cuda": ("CC", ("gcc", "clang", "cc")), "cpu": ("CXX", ("g++", "clang++"))}


def resolve_compile(wanted: bool | None, world: World) -> bool:
    """Whether to compile: as `wanted`, by default only on CUDA.

    Where that is not possible this is False, and rank 0 prints a warning.
    """
    is_wanted = world.device.type == "cuda" if wanted is None else wanted
    missing = missing_compiler(world.device) if is_wanted else None
    if missing and world.is_main:
        print(
            f"warning: torch.compile needs {missing}, which is not installed; training runs "
            "without it, more slowly. Install it, or give --no-compile.",
            file=sys.stderr,
        )
    if not is_wanted or missing:
        return False
    # torch warns of this missed optimization once for each kernel.
    warnings.filterwarnings("ignore", message=r"\sOnline softmax is disabled")
    # With FSDP layers are compiled one by one: four kinds of them, each with several shapes.
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return True


def missing_compiler(device: torch.device) -> str | None:
    """What `torch.compile` lacks on this machine; None where it has everything."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, names = COMPILERS[device.type]
    commands = [os.environ[variable]] if os.environ.get(variable) else list(names)
    if any(shutil.which(command.split()[0]) for command in commands):
        return None
    return f"a compiler ({' or '.join(commands)})"


def compiled(model: nn.Module) -> Callable[..., torch.Tensor]:
    """The model, compiled anew for each shape: dynamic shapes failed on an H200 with torch 2.11."""
    called: Callable[..., torch.Tensor] = torch.compile(model, dynamic=False)
    return called


def without_compiler() -> AbstractContextManager[object]:
    """A context in which a compiled model runs eagerly.

    For batches of other shapes than those of training: with a second shape, the compiler makes code
    for all of them, which is slower; on an H200, torch 2.11 also failed at that.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled; the import takes a second
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
