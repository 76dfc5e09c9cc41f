"""BERT's encoder in plain torch, in the order of the paper (Devlin et al. 2018).

    input_ids, token_type_ids  ->  embeddings  ->  layers  ->  hidden [B, S, H], pooled [B, H]

Shapes are written at the end of the line:

    B batch   S sequence   H hidden   N heads   D head (N * D = H)   F feed-forward
    T tokens of all rows, where they come without padding: then every [B, S, ...] is [T, ...]

Queries, keys and values come from one matrix: one large product is faster than three small ones,
at the price of a `cat` when weights come from elsewhere. Nothing here looks at the data to decide
what to do, so `torch.compile` sees one graph.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Packing, attend
from model.config import BertConfig
from model.cpu_kernels import Dropout
from model.positions import (
    Turns,
    first_positions,
    fixed_positions,
    look_at_neighbours,
    rotary_turns,
    rotate,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Embeddings(nn.Module):
    """Word + segment + position, normalized: what the first layer reads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.has_position_table
            else None
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, rows: Tensor | Packing | None
    ) -> Tensor:
        packing = rows if isinstance(rows, Packing) else None
        length = input_ids.shape[1] if packing is None else packing.max_seqlen
        longest = self.config.max_position_embeddings
        if length > longest:
            raise ValueError(
                f"a sequence of {length} tokens, but the model has {longest} positions "
                "(max_position_embeddings). Cut the text, or train a model with more."
            )
        x = self.word_embeddings(input_ids)  # [B, S, H]
        x = x + self.token_type_embeddings(self._segments(token_type_ids, rows))
        if self.config.positions != "rotary":  # those are the attention's
            x = x + self._positions(length, packing, x.device).to(x.dtype)
        return self.dropout(self.norm(x))

    def _segments(self, token_type_ids: Tensor, rows: Tensor | Packing | None) -> Tensor:
        """As the table counts them: A from 0, or from 1 where 0 is padding."""
        if not self.config.padding_segment:
            return token_type_ids
        is_token = rows.long() if isinstance(rows, Tensor) else 1  # else there is no padding
        return (token_type_ids + 1) * is_token

    def _positions(self, length: int, packing: Packing | None, device: torch.device) -> Tensor:
        """[S, H], the same for every row; [T, H] of unpadded ones."""
        table = self.position_embeddings
        if table is None:
            waves = fixed_positions(self.config, length, device=device)
            return waves if packing is None else waves[packing.position_ids]
        return table.weight[:length] if packing is None else table(packing.position_ids)


class Attention(nn.Module):
    """Every token gathers from every real token: softmax(Q K^T / sqrt(D)) V, in N heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, rows: Tensor | Packing | None, turns: Turns | None) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, S, 3, N, D]
        if turns is not None:
            qkv = rotate(qkv, turns)
        dropout_prob = self.dropout_prob if self.training else 0.0
        gathered = attend(qkv, rows, dropout_prob=dropout_prob)
        return self.output(gathered.flatten(-2))  # [B, S, H]


class FeedForward(nn.Module):
    """Every token by itself: H -> F -> H. Gated, one half of the way up decides on the other."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.gated = config.gated
        width = config.intermediate_size
        self.up = nn.Linear(config.hidden_size, width * (1 + config.gated), bias=config.bias)
        self.down = nn.Linear(width, config.hidden_size, bias=config.bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down(self.activation(self.up(x)))
        gate, up = self.up(x).chunk(2, -1)  # each [B, S, F]
        return self.down(self.activation(gate) * up)


class Layer(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.attention = Attention(config)
        self.attention_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, rows: Tensor | Packing | None, turns: Turns | None) -> Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), rows, turns))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, rows, turns)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class BertEncoder(nn.Module):
    """Embeddings, layers, pooler.

    Built alone its weights are torch's defaults; the models of `heads.py` call `initialize`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = layer_norm(config) if config.final_norm else nn.Identity()
        size = config.hidden_size
        self.pooler = nn.Linear(size, size, bias=config.bias) if config.pooler else None

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [B, S, H] and the pooled [CLS] [B, H], in the model's float type.

        `input_ids`, `token_type_ids`: int64 [B, S]. `attention_mask`: bool [B, S], False at
        padding, at least one True a row; None where nothing is padded, which is faster.
        With a `packing`, rows stand one after another without padding: ids and types are [T], the
        hidden states [T, H], and there is no mask.
        """
        rows = attention_mask if packing is None else packing
        x = self.embeddings(input_ids, token_type_ids, rows)  # [B, S, H]
        turns = self._turns(x, packing)
        for layer in self.layers:
            x = layer(x, rows, turns)
        hidden = self.final_norm(x)
        first = hidden[:, 0] if packing is None else hidden[packing.cu_seqlens[:-1].long()]  # [CLS]
        return hidden, first if self.pooler is None else torch.tanh(self.pooler(first))

    def _turns(self, x: Tensor, packing: Packing | None) -> Turns | None:
        """Those of rotary positions: made once, for all layers."""
        if self.config.positions != "rotary":
            return None
        if packing is None:
            places = torch.arange(x.shape[1], device=x.device)
        else:
            places = packing.position_ids
        return rotary_turns(places, self.config.head_size)


def layer_norm(config: BertConfig) -> nn.LayerNorm:
    """The one kind of norm there is, over H."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)


@torch.no_grad()
def initialize(model: nn.Module, config: BertConfig, *, seed: int) -> None:
    """Draw all weights anew: the same seed gives the same weights, whoever else drew numbers.

    Embeddings are normal or sinusoids, matrices as `config.init` says, biases 0, norms 1 and 0,
    the rows that only pad the vocabulary 0. A model on the meta device has nothing to draw.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            _draw_matrices(name, module.weight, config, generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            if name.endswith("position_embeddings") and config.positions != "learned":
                module.weight.copy_(first_positions(config))
            else:
                _draw_normal(module.weight, config.initializer_range, generator)
        if name.endswith(("word_embeddings", "decoder")):
            module.get_parameter("weight")[config.vocab_size :].zero_()
    if config.positions == "learned-from-neighbours":
        for module in model.modules():
            if isinstance(module, Attention):
                look_at_neighbours(module.qkv.weight, config)


def _draw_matrices(
    name: str, weight: Tensor, config: BertConfig, generator: torch.Generator
) -> None:
    """A layer's matrix, or those that are packed in it: Xavier looks at their shapes."""
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
