"""A pretraining config with plain numbers, for tests that change some of them."""

from typing import Any

from clozeline.train.config import PretrainConfig


def training_config(**changes: Any) -> PretrainConfig:
    """Every number that `clozeline pretrain` takes from a recipe, fixed for tests."""
    numbers: dict[str, Any] = {
        "batch_size": 128,
        "max_steps": 1000,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "warmup": 0.06,
        "schedule": "linear",
        "cool_down": 0.2,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.98,
        "clip": 1.0,
        "word_vectors": False,
        "sampled_words": 0,
        "precision": "fp32",
    }
    return PretrainConfig(**numbers | changes)
