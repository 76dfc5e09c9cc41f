"""A run whose examples are longer than those of the run it starts from needs more positions.

    encoder.embeddings.position_embeddings.weight              [64, H] -> [256, H]
    encoder.embeddings.position_embeddings.weight/exp_avg_sq   [64, H] -> [256, H]

Only a table of learned positions grows; computed positions have no weights.
"""

from dataclasses import replace

import torch
from torch import Tensor

from clozeline.model.config import BertConfig
from clozeline.model.positions import continued_positions

TABLE = "encoder.embeddings.position_embeddings.weight"


def with_positions(config: BertConfig, longest: int) -> BertConfig:
    """The config with positions for examples of `longest` tokens, and never fewer than it has.

    Slower rotations keep more positions distinct. Warner et al. 2024 (2.2.2) went from 1,024 tokens
    to 8,192 with a base of 160,000 instead of 10,000 in global layers; here it also grows by
    a factor of twice the growth in length. Local layers see the same distances as before.
    """
    growth = longest / config.max_position_embeddings
    if growth <= 1:
        return config
    theta = config.global_rope_theta * (2 * growth if config.positions == "rotary" else 1)
    return replace(config, max_position_embeddings=longest, global_rope_theta=theta)


def note_of(there: BertConfig, now: BertConfig) -> str:
    """What changes: "max_position_embeddings 64 there, 256 now: ..."."""
    how = "positions are computed"
    if now.positions == "rotary":
        how = f"global_rope_theta {there.global_rope_theta:g} there, {now.global_rope_theta:g} now"
    if now.has_position_table:
        continues = now.positions == "learned-from-neighbours"
        how = "the new positions " + (
            "continue the waves of the old ones" if continues else "repeat the old ones"
        )
        how += "; their optimizer moments are the mean of the old ones"
    return (
        f"max_position_embeddings {there.max_position_embeddings} there, "
        f"{now.max_position_embeddings} now: {how}"
    )


def grown_weights(weights: dict[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """The weights with a position table of the config's length."""
    if TABLE not in weights or len(weights[TABLE]) == config.max_position_embeddings:
        return weights
    return weights | {TABLE: continued_positions(weights[TABLE], config)}


def grown_moments(moments: dict[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """The optimizer's moments; those of a new position are the mean over the old ones."""
    tables = {name: x for name, x in moments.items() if name.startswith(f"{TABLE}/") and x.ndim}
    for name, old in tables.items():
        new = old.mean(0).expand(config.max_position_embeddings - len(old), -1)
        tables[name] = torch.cat([old, new])
    return moments | tables
