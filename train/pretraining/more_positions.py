"""Examples that are longer than those before them need positions that are trained as well.

They are those of a run that starts from another, or of a later phase of a new model.

    encoder.embeddings.position_embeddings.weight              [64, H] -> [256, H]
    encoder.embeddings.position_embeddings.weight/exp_avg_sq   [64, H] -> [256, H]

Only a table of learned positions grows; computed positions have no weights.
"""

from dataclasses import replace

import torch
from torch import Tensor

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining
from clozeline.model.positions import TABLE, continued_positions
from clozeline.train.engine.distributed import World, full_tensor, shard_like


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
    if now.has_position_table:
        continues = now.positions == "learned-from-neighbours"
        new = "continue the waves of the old ones" if continues else "repeat the old ones"
        how = f"the new positions {new}; their optimizer moments are the mean of the old ones"
    elif now.positions == "rotary":
        how = f"global_rope_theta {there.global_rope_theta:g} there, {now.global_rope_theta:g} now"
    else:
        how = "positions are computed"
    return (
        f"max_position_embeddings {there.max_position_embeddings} there, "
        f"{now.max_position_embeddings} now: {how}"
    )


def grown_weights(
    weights: dict[str, Tensor], config: BertConfig, *, trained: int | None = None
) -> dict[str, Tensor]:
    """The weights with a position table of the config's length.

    Of its rows only the first `trained` ones are kept; None: all of them.
    """
    if TABLE not in weights or len(weights[TABLE][:trained]) == config.max_position_embeddings:
        return weights
    return weights | {TABLE: continued_positions(weights[TABLE][:trained], config)}


def grown_moments(
    moments: dict[str, Tensor], config: BertConfig, *, trained: int | None = None
) -> dict[str, Tensor]:
    """The optimizer's moments; those of a new position are the mean over the old ones."""
    grown = dict(moments)
    for name, value in moments.items():
        if name.startswith(f"{TABLE}/") and value.ndim:
            old = value[:trained]
            new = old.mean(0).expand(config.max_position_embeddings - len(old), -1)
            grown[name] = torch.cat([old, new])
    return grown


@torch.no_grad()
def continue_positions(
    model: BertForPretraining, optimizer: torch.optim.Optimizer, world: World, *, trained: int
) -> None:
    """Set the positions from `trained` on, and their moments, as `grown_weights` does.

    For positions that no example had: they are as they were drawn, and the layers have learned to
    read the others as these are now. A collective call.
    """
    model.state_dict()  # after an evaluation FSDP2 has gathered the weights; this shards them again
    table = model.encoder.embeddings.position_embeddings
    if table is None:
        return
    kept = {f"{TABLE}/{name}": value for name, value in optimizer.state[table.weight].items()}
    kept = {TABLE: table.weight} | {name: value for name, value in kept.items() if value.ndim}
    rows = {name: full_tensor(value)[:trained].cpu() for name, value in kept.items()}
    weights = {TABLE: rows.pop(TABLE)}

    def grown() -> dict[str, Tensor]:
        return grown_weights(weights, model.config) | grown_moments(rows, model.config)

    for name, value in world.tensors_from_main(grown).items():
        kept[name].copy_(shard_like(kept[name], value))
