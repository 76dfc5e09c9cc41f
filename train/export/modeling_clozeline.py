"""Clozeline's encoder and its heads for `transformers`; needs torch and transformers alone.

    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)

`clozeline export` copies this file beside the weights of models that are neither the BERT nor the
ModernBERT of `transformers`. The fields of config.json are those of Clozeline's `BertConfig`.

    B batch   S sequence   H hidden   N heads   D head   V vocabulary
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

GELU_TANH = partial(F.gelu, approximate="tanh")
ACTIVATIONS = {"gelu": F.gelu, "gelu-tanh": GELU_TANH, "relu": F.relu}


class ClozelineConfig(PretrainedConfig):
    """The fields of config.json; `tied_decoder`: the decoder is the word embeddings."""

    model_type = "clozeline"


def layer_norm(config):
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)


class Embeddings(nn.Module):
    """Word + segment + position embeddings, normalized."""

    def __init__(self, config):
        super().__init__()
        self.config, size, types = config, config.hidden_size, config.type_vocab_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        has_table = config.positions.startswith("learned")
        longest = config.max_position_embeddings
        self.position_embeddings = nn.Embedding(longest, size) if has_table else None
        self.token_type_embeddings = nn.Embedding(types, size) if types else None
        self.norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words, token_type_ids, attention_mask):
        x = words  # [B, S, H]
        length = x.shape[1]
        if self.token_type_embeddings is not None:
            # With `padding_segment` segment 0 is padding, 1 and 2 are A and B.
            if self.config.padding_segment:
                token_type_ids = (token_type_ids + 1) * attention_mask.long()
            x = x + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            x = x + self.position_embeddings.weight[:length]
        elif self.config.positions == "sinusoids":
            x = x + self._sinusoids(length, x)
        return self.dropout(self.norm(x))

    def _sinusoids(self, length, like):
        """Fixed positions at the scale of new word embeddings (Vaswani et al. 2017, 3.5)."""
        size = self.config.hidden_size
        position = torch.arange(length, dtype=torch.float32, device=like.device)[:, None]
        steps = torch.arange(0, size, 2, device=like.device)
        angles = position * torch.exp(steps * (-math.log(10_000.0) / size))
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return (waves * math.sqrt(2) * self.config.initializer_range).to(like.dtype)


class Attention(nn.Module):
    """Tokens attend to all tokens, or to those in a window around them, in N heads."""

    def __init__(self, config, *, is_global):
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.window = None if is_global else config.local_attention // 2
        is_rotary = config.positions == "rotary"
        theta = config.global_rope_theta if is_global else config.local_rope_theta
        self.theta = theta if is_rotary else None
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(self, x, attention_mask):
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.theta is not None:
            query, key = self._rotated(query), self._rotated(key)  # [B, N, S, D]
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=self._mask(attention_mask),
            dropout_p=self.dropout_prob if self.training else 0.0,
        )
        return self.output(attended.transpose(1, 2).flatten(-2))

    def _mask(self, attention_mask):
        """Which keys a query attends to, bool [B, 1, 1 or S, S]."""
        mask = attention_mask[:, None, None, :]
        if self.window is None:
            return mask
        position = torch.arange(mask.shape[-1], device=mask.device)
        distance = (position[:, None] - position).abs()
        # A padding token far from all others attends to itself: a softmax over nothing is NaN.
        return (mask & (distance <= self.window)) | (distance == 0)

    def _rotated(self, x):
        """Pairs (i, i + D / 2) rotated by position * frequency (Su et al. 2021, 3.2.2)."""
        size = x.shape[-1]
        steps = torch.arange(0, size, 2, device=x.device)
        position = torch.arange(x.shape[-2], device=x.device)[:, None]
        angles = position * (1 / self.theta ** (steps / size))  # [S, D / 2]
        cosine, sine = angles.cos(), angles.sin()
        cosine, sine = torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)
        return (x * cosine + x.roll(size // 2, -1) * sine).to(x.dtype)


class FeedForward(nn.Module):
    """Two linear layers; gated: the activation of one projection times the other."""

    def __init__(self, config):
        super().__init__()
        self.gated, width = config.gated, config.intermediate_size
        self.up = nn.Linear(config.hidden_size, width * (1 + config.gated), bias=config.bias)
        self.down = nn.Linear(width, config.hidden_size, bias=config.bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x):
        inner = self.up(x)
        if not self.gated:
            return self.down(self.activation(inner))
        gate, inner = inner.chunk(2, -1)
        return self.down(self.activation(gate) * inner)


class Layer(nn.Module):
    """Attention, then feed-forward, each with a residual connection; norms before or after."""

    def __init__(self, config, index):
        super().__init__()
        self.is_pre = config.norm_position != "post"
        is_global = index % config.global_attn_every_n_layers == 0
        self.attention = Attention(config, is_global=is_global)
        has_norm = index > 0 or config.norm_position != "pre-except-first"
        self.attention_norm = layer_norm(config) if has_norm else nn.Identity()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x, attention_mask):
        if self.is_pre:
            x = x + self.dropout(self.attention(self.attention_norm(x), attention_mask))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, attention_mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Transform(nn.Module):
    """Dense, activation and norm before the decoder or the classes."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = layer_norm(config)

    def forward(self, x):
        return self.norm(self.activation(self.dense(x)))


class MaskedLMHead(nn.Module):
    """Hidden states to logits over the vocabulary; a tied decoder is the word embeddings."""

    def __init__(self, config):
        super().__init__()
        size, vocab = config.hidden_size, config.vocab_size
        self.transform = Transform(config) if config.mlm_transform else nn.Identity()
        self.decoder = None if config.tied_decoder else nn.Linear(size, vocab, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab)) if config.head_bias else None

    def forward(self, x, word_embeddings):
        table = word_embeddings if self.decoder is None else self.decoder.weight
        return F.linear(self.transform(x), table, self.bias)


class ClozelinePreTrainedModel(PreTrainedModel):
    config_class = ClozelineConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class ClozelineModel(ClozelinePreTrainedModel):
    """Embeddings, layers, pooler: hidden states [B, S, H] and the vector of [CLS], [B, H]."""

    _keys_to_ignore_on_load_unexpected = ("mlm_head.", "transform.", "classifier.")

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = layer_norm(config) if config.final_norm else nn.Identity()
        size = config.hidden_size
        self.pooler = nn.Linear(size, size, bias=config.bias) if config.pooler else None
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        inputs_embeds=None,
        output_hidden_states=None,
        return_dict=True,
        **unused,
    ):
        words = inputs_embeds if input_ids is None else self.get_input_embeddings()(input_ids)
        shape, device = words.shape[:2], words.device
        if shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"a sequence has {shape[1]} tokens, but the model has "
                f"{self.config.max_position_embeddings} positions; truncate it."
            )
        if attention_mask is None:
            attention_mask = torch.ones(shape, dtype=torch.bool, device=device)
        if token_type_ids is None:
            token_type_ids = torch.zeros(shape, dtype=torch.long, device=device)
        attention_mask = attention_mask.bool()
        states = [self.embeddings(words, token_type_ids, attention_mask)]
        for layer in self.layers:
            states.append(layer(states[-1], attention_mask))
        states[-1] = self.final_norm(states[-1])
        pooled = states[-1][:, 0]
        output = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=pooled if self.pooler is None else torch.tanh(self.pooler(pooled)),
            hidden_states=tuple(states) if output_hidden_states else None,
        )
        return output if return_dict else output.to_tuple()


class ClozelineForMaskedLM(ClozelinePreTrainedModel):
    """Logits [B, S, V] of every token; labels of -100 do not count."""

    def __init__(self, config):
        super().__init__(config)
        self.encoder = ClozelineModel(config)
        self.mlm_head = MaskedLMHead(config)
        self.post_init()

    def forward(self, input_ids=None, labels=None, return_dict=True, **inputs):
        output = self.encoder(input_ids, **inputs)
        logits = self.mlm_head(output.last_hidden_state, self.get_input_embeddings().weight)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        output = MaskedLMOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)
        return output if return_dict else output.to_tuple()


class ClozelineForSequenceClassification(ClozelinePreTrainedModel):
    """Logits [B, num_labels] from the mean of all tokens, from [CLS], or from a prompt's [MASK]."""

    def __init__(self, config):
        super().__init__(config)
        self.encoder = ClozelineModel(config)
        by_mask = config.pooling == "mask"
        has_transform = config.mlm_transform if by_mask else config.classifier_transform
        self.transform = Transform(config) if has_transform else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, labels=None, return_dict=True, **inputs):
        output = self.encoder(input_ids, attention_mask, **inputs)
        pooled = self._pooled(output, attention_mask)
        logits = self.classifier(self.dropout(self.transform(pooled)))
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        states = output.hidden_states
        output = SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=states)
        return output if return_dict else output.to_tuple()

    def _pooled(self, output, attention_mask):
        hidden = output.last_hidden_state
        if self.config.pooling == "cls":
            return output.pooler_output
        if self.config.pooling == "mask":
            return hidden[:, self.config.mask_position]
        if attention_mask is None:
            return hidden.mean(1)
        is_token = attention_mask.bool()[..., None]
        return (hidden * is_token).sum(1) / is_token.sum(1)
