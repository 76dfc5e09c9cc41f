"""Models small enough to check by hand, and a batch with padding for them."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from clozeline.model.attention import Packing
from clozeline.model.config import PRESETS, BertConfig
from clozeline.model.heads import BertForPretraining, masked_lm_loss_sum, next_sentence_loss_sum

Model = TypeVar("Model", bound=nn.Module)

VOCAB = 100  # padded to 128
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"vocab_size": VOCAB, "max_position_embeddings": 32, **NO_DROPOUT}


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def narrow(name: str) -> BertConfig:
    """A preset with all of its switches and heads, but with heads of size 16 and two layers.

    Local layers attend to 4 tokens on either side, with a rotary base of their own.
    """
    full = PRESETS[name]
    return replace(
        full,
        num_hidden_layers=2,
        hidden_size=16 * full.num_attention_heads,
        intermediate_size=full.intermediate_size * 16 // full.head_size,
        local_attention=8,
        local_rope_theta=100.0,
        **SMALL,
    )


def shaken(config: BertConfig) -> BertForPretraining:
    """A model for pretraining without a weight of 0 or 1, which would hide mistakes."""
    return shake(BertForPretraining(config))


def shake(model: Model) -> Model:
    """The model without such weights."""
    generator = numbers(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
            if name.endswith(("word_embeddings.weight", "decoder.weight")):
                parameter[model.config.vocab_size :] = 0
    return model


def inputs_of(rows: int = 4, length: int = 24) -> dict[str, Tensor]:
    """Inputs of an encoder: rows of 24, 19, 14, 9 real tokens; the second half is sentence B."""
    lengths = length - 5 * (torch.arange(rows)[:, None] % 4)
    mask = torch.arange(length) < lengths
    return {
        "input_ids": torch.randint(5, VOCAB, (rows, length), generator=numbers(2)) * mask,
        "token_type_ids": ((torch.arange(length) >= lengths // 2) & mask).long(),
        "attention_mask": mask,
    }


def batch_of(rows: int = 4, length: int = 24) -> dict[str, Tensor]:
    """Inputs of a pretraining model: 3, 2, 1, 3 tokens of the rows are masked."""
    positions = torch.tensor([[3, 7, 11], [2, 5, 0], [1, 0, 0], [4, 6, 8]])
    return {**inputs_of(rows, length), "masked_lm_positions": positions.repeat(rows // 4, 1)}


def packed(batch: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor | Packing | None]:
    """The same batch without padding; `weights` [B, P] mark the positions in use."""
    mask = batch["attention_mask"]
    starts = nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    positions = batch["masked_lm_positions"] + starts[:-1, None]
    return {
        "input_ids": batch["input_ids"][mask],
        "token_type_ids": batch["token_type_ids"][mask],
        "attention_mask": None,
        "masked_lm_positions": positions[weights > 0],
        "packing": Packing(mask.nonzero()[:, 1], starts.int(), mask.shape[1]),
    }


def answers(rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """(masked_lm_labels [B, 3], weights [B, 3], next_sentence_label [B])."""
    weights = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).repeat(rows // 4, 1)
    labels = torch.randint(5, VOCAB, (rows, 3), generator=numbers(3)) * weights
    return labels, weights, torch.arange(rows) % 2


def loss_of(model: BertForPretraining, rows: int = 4) -> tuple[Tensor, Tensor]:
    """Mean losses, over masked tokens and over pairs."""
    labels, weights, follows = answers(rows)
    mlm_logits, nsp_logits = model(**batch_of(rows))
    return (
        masked_lm_loss_sum(mlm_logits, labels, weights) / weights.sum(),
        next_sentence_loss_sum(nsp_logits, follows) / rows,
    )


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
