"""BERT's encoder in plain torch, in the order of the paper (Devlin et al. 2018).

    input_ids, token_type_ids  ->  embeddings  ->  layers  ->  hidden [B, S, H], pooled [B, H]

Shapes are written at the end of the line:

    B batch   S sequence   H hidden   N heads   D head (N * D = H)   F feed-forward
    T tokens of all rows, where they come without padding: then every [B, S, ...] is [T, ...]

Queries, keys and values come from one matrix: one large product is faster than three small ones,
at the price of a `cat` when weights come from elsewhere. Nothing here looks at the data to decide
what to do, so `torch.compile` sees one graph.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Packing, attend
from model.config import BertConfig
from model.dropout import Dropout

# How much a wave at the place looked for adds to a head's score, where positions start from
# neighbours.
NEIGHBOUR_SCORE = 0.6

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


class Embeddings(nn.Module):
    """Word + segment + position, normalized: what the first layer reads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, packing: Packing | None) -> Tensor:
        length = input_ids.shape[1] if packing is None else packing.max_seqlen
        longest = self.position_embeddings.num_embeddings
        if length > longest:
            raise ValueError(
                f"a sequence of {length} tokens, but the model has {longest} positions "
                "(max_position_embeddings). Cut the text, or train a model with more."
            )
        x = self.word_embeddings(input_ids)  # [B, S, H]
        x = x + self.token_type_embeddings(token_type_ids)
        if packing is None:
            x = x + self.position_embeddings.weight[:length]  # [S, H], the same for every row
        else:
            x = x + self.position_embeddings(packing.position_ids)  # [T, H]
        return self.dropout(self.norm(x))


class Attention(nn.Module):
    """Every token gathers from every real token: softmax(Q K^T / sqrt(D)) V, in N heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, rows: Tensor | Packing | None) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, S, 3, N, D]
        dropout_prob = self.dropout_prob if self.training else 0.0
        gathered = attend(qkv, rows, dropout_prob=dropout_prob)
        return self.output(gathered.flatten(-2))  # [B, S, H]


class FeedForward(nn.Module):
    """Every token by itself: H -> F -> H."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


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

    def forward(self, x: Tensor, rows: Tensor | Packing | None) -> Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), rows))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, rows)))
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
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.pooler else None

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
        x = self.embeddings(input_ids, token_type_ids, packing)  # [B, S, H]
        rows = attention_mask if packing is None else packing
        for layer in self.layers:
            x = layer(x, rows)
        hidden = self.final_norm(x)
        first = hidden[:, 0] if packing is None else hidden[packing.cu_seqlens[:-1].long()]  # [CLS]
        return hidden, first if self.pooler is None else torch.tanh(self.pooler(first))


def layer_norm(config: BertConfig) -> nn.LayerNorm:
    """The one kind of norm there is, over H."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


@torch.no_grad()
def initialize(model: nn.Module, config: BertConfig, *, seed: int) -> None:
    """Draw all weights anew: the same seed gives the same weights, whoever else drew numbers.

    Embeddings are normal or sinusoids, matrices as `config.init` says, biases 0, norms 1 and 0,
    the rows that only pad the vocabulary 0. A model on the meta device has nothing to draw.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            # Packed queries, keys and values are three matrices: Xavier looks at their shapes.
            for matrix in module.weight.chunk(3 if name.endswith("qkv") else 1):
                _draw_matrix(matrix, config, generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            if name.endswith("position_embeddings") and config.positions != "learned":
                module.weight.copy_(_position_waves(config) * config.initializer_range)
            else:
                _draw_normal(module.weight, config, generator)
        if name.endswith(("word_embeddings", "decoder")):
            module.get_parameter("weight")[config.vocab_size :].zero_()
    if config.positions == "learned-from-neighbours":
        for module in model.modules():
            if isinstance(module, Attention):
                _look_at_neighbours(module, config)


def sinusoids(length: int, size: int) -> Tensor:
    """Float32 [length, size]: sines at even places, cosines at odd (Vaswani et al. 2017, 3.5)."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], -1).flatten(1)


def neighbour_rates(config: BertConfig) -> Tensor:
    """Float32 [H / 2]: rates of the waves, from half a turn a word to half a turn a sequence."""
    steps = torch.linspace(0, 1, config.hidden_size // 2)
    return math.pi * (1 / config.max_position_embeddings) ** steps


def _position_waves(config: BertConfig) -> Tensor:
    """Float32 [S, H], of a root mean square of 1 (a sine's is 1/√2), or 2 where heads need them."""
    length = config.max_position_embeddings
    if config.positions == "learned-from-sinusoids":
        return sinusoids(length, config.hidden_size) * math.sqrt(2)
    turned = torch.arange(length, dtype=torch.float32)[:, None] * neighbour_rates(config)
    # Twice as loud as the words: a word is most like itself, and would be looked at first.
    return torch.stack([turned.sin(), turned.cos()], -1).flatten(1) * (2 * math.sqrt(2))


def _look_at_neighbours(attention: Attention, config: BertConfig) -> None:
    """Add to queries and keys what makes half of the heads look 1, -1, 2, -2, ... words away.

    A wave shifted by d words is the same wave turned by its rate times d. So a head whose keys are
    some of the waves, and whose queries are those waves turned, scores highest d words away. It is
    only where training starts: everything here is learned. The other heads stay free, for whether B
    follows A is not told by neighbours.
    """
    heads, size = config.num_attention_heads, config.head_size
    query, key, _ = attention.qkv.weight.chunk(3)
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


def _draw_matrix(weight: Tensor, config: BertConfig, generator: torch.Generator) -> None:
    if config.init == "xavier":
        nn.init.xavier_uniform_(weight, generator=generator)
    else:
        _draw_normal(weight, config, generator)


def _draw_normal(weight: Tensor, config: BertConfig, generator: torch.Generator) -> None:
    std = config.initializer_range
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
