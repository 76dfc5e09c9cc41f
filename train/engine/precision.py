"""The number format of a forward pass, and the seed of its dropout."""

from contextlib import AbstractContextManager, nullcontext

import torch

from pipeline.common.counter_rng import random_bits, stream_key


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16, or everything in float32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Seed torch from (seed, step, rank) alone, so there is no generator state to save."""
    bits = random_bits(stream_key(seed, "dropout", step), rank)
    torch.manual_seed(int(bits) >> 1)
