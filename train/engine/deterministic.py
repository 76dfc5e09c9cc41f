"""Kernels that give the same bits in each run: `clozeline pretrain --deterministic`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clozeline.pipeline.common.errors import InputError, one_line

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
