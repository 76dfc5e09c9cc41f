"""Hugging Face folders of a small model, and `transformers` without its noise."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clozeline.model.config import BertConfig, preset
from clozeline.model.huggingface.convert import load_huggingface, save_huggingface
from tests.support.small_models import VOCAB

SMALL = BertConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=24,
)
#: Three layers, of which the second and third attend to 4 tokens on either side.
MODERN = preset(
    "modern-mini",
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=24,
    local_attention=8,
    global_rope_theta=160_000.0,
)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, and warnings of the library that pytest can catch."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.enable_propagation()
    yield
    logging.disable_propagation()
    logging.enable_progress_bar()


def save_folder(folder: Path, model: torch.nn.Module, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    assert isinstance(model.config, BertConfig)
    save_huggingface(folder, model.config, model.state_dict(), **options)
    return folder


def change(folder: Path, **values: Any) -> None:
    """Change values in config.json; None removes one."""
    config = json.loads((folder / "config.json").read_bytes()) | values
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")


def instead_of_weights(folder: Path, *names: str) -> None:
    """Replace the weights by empty files of these names."""
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).write_bytes(b"")


def assert_equal_models(one: Path, other: Path) -> None:
    first, second = load_huggingface(one).weights, load_huggingface(other).weights
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
