"""BERT's encoder in plain torch, in the order of the paper (Devlin et al. 2018).

    input_ids, token_type_ids  ->  embeddings  ->  layers  ->  hidden [B, S, H], pooled [B, H]

Shapes are at the end of the line:

    B batch   S sequence   H hidden   N heads   D head (N * D = H)   F feed-forward
    T tokens of all rows, for unpadded rows, where every [B, S, ...] is [T, ...]
    P tokens of a row whose last states are asked for, [B, P, ...]; unpadded, of all rows, [P, ...]

Queries, keys and values come from one matrix: one large product is faster than three small ones.
There is no control flow that depends on values, so `torch.compile` sees a single graph.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clozeline.model.attention import Packing, Rows, attend, position_ids, states_at
from clozeline.model.config import BertConfig
from clozeline.model.cpu_kernels import Dropout
from clozeline.model.positions import (
    Rotation,
    attend_to_neighbours,
    fixed_positions,
    initial_positions,
    rotate,
    rotation_at,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Embeddings(nn.Module):
    """Word + segment + position embeddings, normalized."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        size, types = config.hidden_size, config.type_vocab_size
        positions = config.max_position_embeddings if config.has_position_table else 0
        self.word_embeddings = nn.Embedding(config.padded_vocab_size, size)
        self.position_embeddings = nn.Embedding(positions, size) if positions else None
        self.token_type_embeddings = nn.Embedding(types, size) if types else None
        self.norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, rows: Rows) -> Tensor:
        packing = rows if isinstance(rows, Packing) else None
        length = input_ids.shape[1] if packing is None else packing.max_seqlen
        longest = self.config.max_position_embeddings
        if length > longest:
            raise ValueError(
                f"a sequence has {length} tokens, but the model has {longest} positions "
                "(max_position_embeddings). Truncate it, or train a model with more positions."
            )
        x = self.word_embeddings(input_ids)  # [B, S, H]
        if self.token_type_embeddings is not None:
            x = x + self.token_type_embeddings(self._segments(token_type_ids, rows))
        if self.config.positions != "rotary":  # rotary positions are applied in attention
            x = x + self._positions(length, position_ids(rows), x.device).to(x.dtype)
        embedded: Tensor = self.dropout(self.norm(x))
        return embedded

    def _segments(self, token_type_ids: Tensor, rows: Rows) -> Tensor:
        """Rows of the segment table: A is 0, or 1 where 0 is padding."""
        if not self.config.padding_segment:
            return token_type_ids
        is_token = rows.bool().long() if isinstance(rows, Tensor) else 1  # 1: there is no padding
        return (token_type_ids + 1) * is_token

    def _positions(self, length: int, ids: Tensor | None, device: torch.device) -> Tensor:
        """[S, H], the same for every row; [B, S, H] for packed rows, [T, H] for unpadded ones."""
        table = self.position_embeddings
        if table is None:
            fixed = fixed_positions(self.config, length, device=device)
            return fixed if ids is None else fixed[ids]
        return table.weight[:length] if ids is None else table(ids)


class Attention(nn.Module):
    """Tokens attend to all or to nearby real tokens: softmax(Q K^T / sqrt(D)) V, in N heads."""

    def __init__(self, config: BertConfig, *, is_global: bool) -> None:
        super().__init__()
        self.window = None if is_global else config.local_attention // 2
        self.heads = config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(
        self, x: Tensor, rows: Rows, rotation: Rotation | None, positions: Tensor | None
    ) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, S, 3, N, D]
        if rotation is not None:
            qkv = rotate(qkv, rotation)
        dropout_prob = self.dropout_prob if self.training else 0.0
        attended = attend(
            qkv, rows, dropout_prob=dropout_prob, window=self.window, positions=positions
        )
        output: Tensor = self.output(attended.flatten(-2))  # [B, S or P, H]
        return output


class FeedForward(nn.Module):
    """H -> F -> H for each token; gated: the activation of one projection times the other."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.gated = config.gated
        width = config.intermediate_size
        self.up = nn.Linear(config.hidden_size, width * (1 + config.gated), bias=config.bias)
        self.down = nn.Linear(width, config.hidden_size, bias=config.bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.up(x)  # [B, S, F], gated [B, S, 2F]
        if self.gated:
            gate, inner = inner.chunk(2, -1)  # each [B, S, F]
            inner = self.activation(gate) * inner
        else:
            inner = self.activation(inner)
        output: Tensor = self.down(inner)
        return output


class Layer(nn.Module):
    """Attention, then feed-forward, each with a residual connection; `index` counts from 0."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        self.pre_norm = config.norm_position != "post"
        self.attention = Attention(config, is_global=config.is_global(index))
        has_norm = index > 0 or config.norm_position != "pre-except-first"
        self.attention_norm = layer_norm(config) if has_norm else nn.Identity()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, x: Tensor, rows: Rows, rotation: Rotation | None, positions: Tensor | None = None
    ) -> Tensor:
        """The next states [B, S, H], or [B, P, H] of the tokens `kept`, int64 [B, P]."""
        dtype = x.dtype  # autocast makes norms return float32
        inputs = self.attention_norm(x) if self.pre_norm else x
        x = states_at(x, positions) + self.dropout(
            self.attention(inputs, rows, rotation, positions)
        )
        if self.pre_norm:
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self.attention_norm(x).to(dtype)
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x))).to(dtype)
        return x


class BertEncoder(nn.Module):
    """Embeddings, layers, pooler.

    Its initial weights are torch's defaults; the models in `heads.py` call `initialize`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = layer_norm(config) if config.final_norm else nn.Identity()
        size = config.hidden_size
        self.pooler = nn.Linear(size, size, bias=config.bias) if config.pooler else None

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None,
        packing: Packing | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [B, S, H] and the pooled [CLS] [B, H], in the model's float dtype.

        With `positions`, int64 [B, P], only the states [B, P, H] there: of the last layer all but
        queries, keys and values is computed for these tokens and [CLS] alone.

        `input_ids`, `token_type_ids`: int64 [B, S]. `attention_mask`: bool [B, S], False at
        padding; None without padding; or the numbers of packed pieces. A row has a token at least.
        With a `packing` ids and types are [T], the hidden states [T, H], the pooled [CLS] is that
        of each sequence, and the mask is ignored.
        """
        rows = attention_mask if packing is None else packing
        x = self.embeddings(input_ids, token_type_ids, rows)  # [B, S, H]
        rotations = self._rotations(x, rows)
        # Where [CLS] is, int64 [B, 1], unpadded [B].
        if packing is None:
            first = input_ids.new_zeros(len(x), 1)
        else:
            # A sequence without tokens, at the end, begins after the last one.
            first = packing.cu_seqlens[:-1].long().clamp(max=len(input_ids) - 1)
        wanted = None if positions is None else torch.cat([first, positions], -1)
        for index, layer in enumerate(self.layers):
            rotation = rotations.get(self.config.is_global(index))
            x = layer(x, rows, rotation, wanted if index == len(self.layers) - 1 else None)
        hidden = self.final_norm(x)
        if wanted is None:
            pooled = states_at(hidden, first)
        else:
            pooled, hidden = hidden.tensor_split([first.shape[-1]], -2)
        pooled = pooled.squeeze(1) if packing is None else pooled  # [B, H]
        return hidden, pooled if self.pooler is None else torch.tanh(self.pooler(pooled))

    def _rotations(self, x: Tensor, rows: Rows) -> dict[bool, Rotation]:
        """The rotations of rotary positions in global (True) and local layers, computed once."""
        config = self.config
        if config.positions != "rotary":
            return {}
        positions = position_ids(rows)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        bases = {True: config.global_rope_theta, False: config.local_rope_theta}
        return {
            is_global: rotation_at(positions, config.head_size, theta)
            for is_global, theta in bases.items()
        }


def layer_norm(config: BertConfig) -> nn.LayerNorm:
    """The model's only kind of norm, over H."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)


@torch.no_grad()
def initialize(model: nn.Module, config: BertConfig, *, seed: int) -> None:
    """Draw all weights; they depend on the seed alone, not on torch's global generator.

    Embeddings are normal or sinusoids, matrices follow `config.init`, biases are 0, norms 1 and 0,
    and the padding rows of the vocabulary 0. On the meta device nothing is drawn.
    """
    if next(model.parameters()).is_meta:
        return
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            _draw_matrices(name, module.weight, config, generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            if name.endswith("position_embeddings") and config.positions != "learned":
                module.weight.copy_(initial_positions(config))
            else:
                _draw_normal(module.weight, config.initializer_range, generator)
        if name.endswith(("word_embeddings", "decoder")):
            module.get_parameter("weight")[config.vocab_size :].zero_()
    if config.positions == "learned-from-neighbours":
        for module in model.modules():
            if isinstance(module, Attention):
                attend_to_neighbours(module.qkv.weight, config)


def _draw_matrices(
    name: str, weight: Tensor, config: BertConfig, generator: torch.Generator
) -> None:
    """Draw a layer's matrix, or each matrix packed into it: Xavier depends on their shapes."""
    packed = 3 if name.endswith("qkv") else 2 if config.gated and name.endswith("up") else 1
    std = config.initializer_range
    if config.init == "normal-residual" and name.endswith(("attention.output", "down")):
        std /= (2 * config.num_hidden_layers) ** 0.5
    for matrix in weight.chunk(packed):
        if config.init == "xavier":
            nn.init.xavier_uniform_(matrix, generator=generator)
        else:
            _draw_normal(matrix, std, generator)


def _draw_normal(weight: Tensor, std: float, generator: torch.Generator) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
