"""Positions: sinusoids, initial values of learned positions, and rotary positions.

    S sequence   T tokens of all rows, unpadded   H hidden   N heads   D head

A sinusoid of frequency f has the angle p * f at position p, so shifting it by d tokens rotates it
by d * f. Sinusoids (Vaswani et al. 2017), heads that start by attending to neighbours, and rotary
positions (Su et al. 2021) all rest on this. Nothing in this file is a weight or a buffer: constants
are computed where they are needed, in float32, and are not stored in checkpoints.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from clozeline.model.config import BertConfig

#: Frequencies of sinusoids fall from 1 to nearly 1 / BASE (Vaswani et al. 2017, 3.5).
BASE = 10_000.0
# With "learned-from-neighbours": how much each sinusoid adds to a head's score at its neighbour.
NEIGHBOUR_SCORE = 0.6

#: The name of the learned positions in the state of a model that has an encoder.
TABLE = "encoder.embeddings.position_embeddings.weight"

Rotation = tuple[Tensor, Tensor]  # cosines and sines, see `rotation_at`


def sinusoids(length: int, size: int, *, device: torch.device | None = None) -> Tensor:
    """Float32 [length, size]: sines in even columns, cosines in odd (Vaswani et al. 2017, 3.5)."""
    position = torch.arange(length, dtype=torch.float32, device=device)[:, None]
    steps = torch.arange(0, size, 2, device=device)
    return _sines_and_cosines(position * torch.exp(steps * (-math.log(BASE) / size)))


def fixed_positions(
    config: BertConfig, length: int, *, device: torch.device | None = None
) -> Tensor:
    """Float32 [length, H]: sinusoids scaled to the standard deviation of new word embeddings."""
    unit = sinusoids(length, config.hidden_size, device=device) * math.sqrt(2)
    return unit * config.initializer_range


def initial_positions(config: BertConfig) -> Tensor:
    """Float32 [S, H]: initial values of learned positions that do not start at random."""
    length = config.max_position_embeddings
    if config.positions == "learned-from-sinusoids":
        return fixed_positions(config, length)
    position = torch.arange(length, dtype=torch.float32)[:, None]
    waves = _sines_and_cosines(position * neighbour_frequencies(config))
    # Twice the scale of the word embeddings: otherwise each token attends most to itself.
    return waves * (2 * math.sqrt(2)) * config.initializer_range


def continued_positions(table: Tensor, config: BertConfig) -> Tensor:
    """Float32 [S, H]: a trained table [R, H] of a shorter model, R <= S, with rows for the rest.

    Its rows stay. With "learned-from-neighbours" every column is a wave: the new rows continue the
    waves that fit the table best, so heads that attend some tokens away do so everywhere. Other
    tables are repeated (Beltagy et al. 2020, Longformer, section 5), which keeps the distances of
    neighbours; rows interpolated between the old ones would change them.
    """
    rows, longer = len(table), config.max_position_embeddings
    if config.positions != "learned-from-neighbours":
        return table.repeat(-(-longer // rows), 1)[:longer]
    columns = table.double().unflatten(1, (-1, 2)).transpose(0, 1)  # [H / 2, R, 2]

    def misfit(first: int) -> float:
        waves = _neighbour_waves(config, first, rows)
        return float((waves @ _amplitudes(waves, columns) - columns).square().sum())

    # A table that has grown before keeps the frequencies of the length that it was made for; one
    # of which only the first rows are trained has those of all.
    first = min((longer, *range(rows, 0, -1)), key=misfit)
    waves = _neighbour_waves(config, first, longer)
    continued = (waves @ _amplitudes(waves[:, :rows], columns)).transpose(0, 1).flatten(1)  # [S, H]
    return torch.cat([table, continued[rows:].to(table.dtype)])


def _neighbour_waves(config: BertConfig, first: int, length: int) -> Tensor:
    """Sine, cosine and 1 at each of `length` positions, with the frequencies of `first` positions.

    Float64 [H / 2, length, 3].
    """
    frequencies = neighbour_frequencies(replace(config, max_position_embeddings=first))
    position = torch.arange(length, dtype=torch.float32)[:, None]
    angles = (position * frequencies).double().T
    return torch.stack([angles.sin(), angles.cos(), torch.ones_like(angles)], -1)


def _amplitudes(waves: Tensor, columns: Tensor) -> Tensor:
    """The sums of waves [H / 2, R, 3] nearest to columns [H / 2, R, 2]: float64 [H / 2, 3, 2]."""
    # Least squares by SVD: the sines of the fastest wave are all 0.
    amplitudes: Tensor = torch.linalg.lstsq(waves, columns, driver="gelsd").solution
    return amplitudes


def neighbour_frequencies(config: BertConfig) -> Tensor:
    """Float32 [H / 2]: from pi per token down to pi per sequence."""
    # Given, since after transformers' `from_pretrained` torch may leave `linspace` on the CPU.
    device = torch.get_default_device()
    steps = torch.linspace(0, 1, config.hidden_size // 2, device=device)
    return math.pi * (1 / config.max_position_embeddings) ** steps


def attend_to_neighbours(qkv: Tensor, config: BertConfig) -> None:
    """Change the matrix [3H, H] so that half of the heads attend 1, -1, 2, -2, ... tokens away.

    A head whose keys are some of the sinusoids, and whose queries are the same sinusoids rotated by
    d tokens, scores highest d tokens away. These are initial values: training changes them all. The
    other heads are left as drawn, since neighbours do not show whether B follows A.
    """
    heads, size = config.num_attention_heads, config.head_size
    query, key, _ = qkv.chunk(3)
    strength = math.sqrt(NEIGHBOUR_SCORE * math.sqrt(size))
    for head in range(heads // 2):
        offset = (head // 2 + 1) * (1 if head % 2 == 0 else -1)
        waves = torch.arange(head, config.hidden_size // 2, heads)[: size // 2]
        angle = neighbour_frequencies(config)[waves] * offset
        rows = head * size + 2 * torch.arange(size // 2)
        sine, cosine = 2 * waves, 2 * waves + 1
        key[rows, sine] += strength
        key[rows + 1, cosine] += strength
        query[rows, sine] += strength * angle.cos()
        query[rows, cosine] += strength * angle.sin()
        query[rows + 1, cosine] += strength * angle.cos()
        query[rows + 1, sine] -= strength * angle.sin()


def rotation_at(positions: Tensor, head_size: int, theta: float) -> Rotation:
    """The rotation of tokens at `positions`, int64 [S], [T] or [B, S]: cosines and sines.

    Both are float32 [..., 1, 1, D].

    Frequencies fall from 1 to nearly 1 / theta (Su et al. 2021, 3.2.2). Angles, position *
    frequency, are float32 under autocast too, since bfloat16 cannot represent 401.
    """
    steps = torch.arange(0, head_size, 2, device=positions.device)
    angles = positions[..., None] * (1 / theta ** (steps / head_size))  # [..., D / 2]
    cosine, sine = (part[..., None, None, :] for part in (angles.cos(), angles.sin()))
    return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def rotate(qkv: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (i, i + D / 2) of a query and a key, [..., 3, N, D]; the dtype stays.

    A score then depends on the distance of two tokens and not on their positions (Su et al. 2021,
    3.2). The arithmetic is float32, rounded once.
    """
    cosine, sine = rotation
    query_key, value = qkv.split((2, 1), -3)
    partner = query_key.roll(qkv.shape[-1] // 2, -1)
    rotated = query_key * cosine + partner * sine
    return torch.cat([rotated.to(qkv.dtype), value], -3)


def _sines_and_cosines(angles: Tensor) -> Tensor:
    """Alternating sines and cosines, [S, 2K], of angles [S, K]."""
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
