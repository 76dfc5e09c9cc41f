"""Where a token stands: waves that positions are or start from, and turns of queries and keys.

    S sequence   T tokens of all rows, unpadded   H hidden   N heads   D head

A wave of rate r is at angle p * r at place p, so a wave shifted by d words is the same wave turned
by d * r. That is why sinusoids (Vaswani et al. 2017), the heads that start on their neighbours and
rotary positions (Su et al. 2021) are all told here. Nothing in this file is a weight or a buffer:
what is fixed is made where it is needed, in float32, and takes no place in a checkpoint.
"""

import math

import torch
from torch import Tensor

from model.config import BertConfig

#: Rates go down from 1 to nearly 1 / 10,000 (Vaswani et al. 2017, 3.5; Su et al. 2021, 3.2.2).
SLOWEST = 10_000.0
# How much a wave at the place looked for adds to a head's score, where positions start from
# neighbours.
NEIGHBOUR_SCORE = 0.6

Turns = tuple[Tensor, Tensor]  # cosines and sines, see `rotary_turns`


def sinusoids(length: int, size: int, *, device: torch.device | None = None) -> Tensor:
    """Float32 [length, size]: sines at even places, cosines at odd (Vaswani et al. 2017, 3.5)."""
    position = torch.arange(length, dtype=torch.float32, device=device)[:, None]
    steps = torch.arange(0, size, 2, device=device)
    return _waves(position * torch.exp(steps * (-math.log(SLOWEST) / size)))


def fixed_positions(
    config: BertConfig, length: int, *, device: torch.device | None = None
) -> Tensor:
    """Float32 [length, H]: sinusoids as loud as fresh words, for a sine's mean square is a half."""
    waves = sinusoids(length, config.hidden_size, device=device) * math.sqrt(2)
    return waves * config.initializer_range


def first_positions(config: BertConfig) -> Tensor:
    """Float32 [S, H]: where learned positions start, if not from random numbers."""
    length = config.max_position_embeddings
    if config.positions == "learned-from-sinusoids":
        return fixed_positions(config, length)
    waves = _waves(torch.arange(length, dtype=torch.float32)[:, None] * neighbour_rates(config))
    # Twice as loud as the words: a word is most like itself, and would be looked at first.
    return waves * (2 * math.sqrt(2)) * config.initializer_range


def neighbour_rates(config: BertConfig) -> Tensor:
    """Float32 [H / 2]: rates of the waves, from half a turn a word to half a turn a sequence."""
    steps = torch.linspace(0, 1, config.hidden_size // 2)
    return math.pi * (1 / config.max_position_embeddings) ** steps


def look_at_neighbours(qkv: Tensor, config: BertConfig) -> None:
    """Add to the matrix [3H, H] what makes half of the heads look 1, -1, 2, -2, ... words away.

    A head whose keys are some of the waves, and whose queries are those waves turned by d words,
    scores highest d words away. It is only where training starts: everything here is learned. The
    other heads stay free, for whether B follows A is not told by neighbours.
    """
    heads, size = config.num_attention_heads, config.head_size
    query, key, _ = qkv.chunk(3)
    strength = math.sqrt(NEIGHBOUR_SCORE * math.sqrt(size))
    for head in range(heads // 2):
        offset = (head // 2 + 1) * (1 if head % 2 == 0 else -1)
        waves = torch.arange(head, config.hidden_size // 2, heads)[: size // 2]
        turn = neighbour_rates(config)[waves] * offset
        rows = head * size + 2 * torch.arange(size // 2)
        sine, cosine = 2 * waves, 2 * waves + 1
        key[rows, sine] += strength
        key[rows + 1, cosine] += strength
        query[rows, sine] += strength * turn.cos()
        query[rows, cosine] += strength * turn.sin()
        query[rows + 1, cosine] += strength * turn.cos()
        query[rows + 1, sine] -= strength * turn.sin()


def rotary_turns(places: Tensor, head_size: int) -> Turns:
    """How far `rotate` turns tokens at `places`, int64 [S]: two of float32 [S, 3, 1, D].

    Queries and keys are turned by place * rate, values by nothing. Angles are float32 under
    autocast too, for bfloat16 has no 401.
    """
    steps = torch.arange(0, head_size, 2, device=places.device)
    angles = places[:, None] * torch.exp(steps * (-math.log(SLOWEST) / head_size))  # [S, D / 2]
    angles = torch.stack([angles, angles, torch.zeros_like(angles)], 1)[:, :, None]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def rotate(qkv: Tensor, turns: Turns) -> Tensor:
    """Turn each pair (i, i + D / 2) of a query and a key, [..., 3, N, D]; the type stays.

    A score is then a function of how far apart two tokens are (Su et al. 2021, 3.2), whatever
    their places. The arithmetic is float32, and rounded once.
    """
    cosine, sine = turns
    partner = qkv.roll(qkv.shape[-1] // 2, -1)
    return (qkv * cosine + partner * sine).to(qkv.dtype)


def _waves(angles: Tensor) -> Tensor:
    """Sines and cosines in turn, [S, 2K], of angles [S, K]."""
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
