"""BERT's heads: masked language model, next-sentence prediction, and classification of a text.

The masked-LM head computes logits at masked positions only: the decoder is most of a small model's
arithmetic, and six in seven tokens have no label. The number of positions per row is fixed, so
shapes are static; unused slots point at position 0 and have weight 0 in the loss.

Losses are sums, not means: only the trainer knows the number of masked tokens in the global batch.

    B batch   S sequence   H hidden   P predictions a row   V vocabulary   W = V rounded up to 64
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clozeline.model.attention import Packing
from clozeline.model.bert import ACTIVATIONS, BertEncoder, initialize, layer_norm
from clozeline.model.config import BertConfig, Pooling
from clozeline.model.cpu_kernels import Dropout, cross_entropies, sampled_cross_entropies


class WordSample(NamedTuple):
    """Words that stand for the whole vocabulary in the masked-LM loss of a step."""

    words: Tensor  # int64 [K], distinct
    log_weights: Tensor  # float32 [K], log of how many words each of them stands for


class Targets(NamedTuple):
    """What a batch should be predicted as: the fields of `Batch` with these names, and a sample."""

    masked_lm_labels: Tensor  # int64 [B, P], unpadded [P]
    masked_lm_weights: Tensor  # float32, 0 in unused slots
    next_sentence_labels: Tensor  # int64 [B], -1: no sentence B
    sample: WordSample | None = None  # None: the whole vocabulary


class Transform(nn.Module):
    """Dense + activation + norm, between the encoder and the decoder or the classes."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = layer_norm(config)

    def forward(self, hidden: Tensor) -> Tensor:
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed


class MaskedLMHead(nn.Module):
    """Hidden states at masked positions to logits over the vocabulary."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden, vocab = config.hidden_size, config.padded_vocab_size
        self.padding = vocab - config.vocab_size
        self.transform = Transform(config) if config.mlm_transform else nn.Identity()
        # A tied decoder is the encoder's embedding table, and it is stored only there.
        self.decoder = None if config.tie_word_embeddings else nn.Linear(hidden, vocab, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None

    def forward(
        self, masked: Tensor, word_embeddings: Tensor, targets: Targets | None = None
    ) -> Tensor:
        """Logits [..., W] of `masked` [..., H]; the columns from V on are -inf.

        With `targets` that have a sample, instead the losses in nats, float32, one for each slot:
        FSDP2 gathers the decoder's weights only for a call of this method.
        """
        table = word_embeddings if self.decoder is None else self.decoder.weight  # [W, H]
        bias = table.new_zeros(len(table) - self.padding) if self.bias is None else self.bias
        if targets is not None and targets.sample is not None:
            states = self.transform(masked).flatten(0, -2)
            return _losses_with_sample(states, table, bias, _labels(*targets[:2]), targets.sample)
        # Masking the padding rows of the vocabulary through the bias costs nothing.
        bias = F.pad(bias, (0, self.padding), value=float("-inf"))
        return F.linear(self.transform(masked), table, bias)


class BertForPretraining(nn.Module):
    """Masked-LM and next-sentence heads on one encoder. `seed` decides the initial weights.

    >>> model = BertForPretraining(preset("bert-tiny", vocab_size=400))
    >>> sum(weights.numel() for weights in model.parameters())
    553874
    """

    def __init__(self, config: BertConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.encoder = BertEncoder(config)
        self.mlm_head = MaskedLMHead(config)
        self.nsp_head = nn.Linear(config.hidden_size, 2, bias=config.head_bias)
        initialize(self, config, seed=seed)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None,
        masked_lm_positions: Tensor,
        packing: Packing | None = None,
        targets: Targets | None = None,
        count_hits: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Logits of the masked tokens [B, P, W] and of (follows, is random) [B, 2].

        With `targets`, instead the sums of both losses and the numbers of correct predictions of
        both (0 without `count_hits`), each float32 [2]: compiled with the model, the losses need
        no float32 copy of the logits. With a sample of words the masked-LM loss is an estimate.

        `input_ids`, `token_type_ids`: int64 [B, S]; `attention_mask`: [B, S] or None, see
        `BertEncoder`; `masked_lm_positions`: int64 [B, P], 0 in unused slots. With a `packing`, ids
        and types are [T], positions are indices into the T tokens, [P] for all rows together, and
        the logits are [P, W].
        """
        masked, pooled = self.encoder(
            input_ids, token_type_ids, attention_mask, packing, masked_lm_positions
        )
        embeddings = self.encoder.embeddings.word_embeddings.weight
        nsp_logits = self.nsp_head(pooled)
        if targets is None:
            return self.mlm_head(masked, embeddings), nsp_logits
        if targets.sample is None:
            mlm_logits = self.mlm_head(masked, embeddings)
            mlm_loss = masked_lm_loss_sum(mlm_logits, *targets[:2])
        else:
            mlm_losses = self.mlm_head(masked, embeddings, targets)
            mlm_loss = (mlm_losses * targets.masked_lm_weights.flatten()).sum()
        losses = torch.stack([mlm_loss, next_sentence_loss_sum(nsp_logits, targets[2])])
        if not count_hits:
            return losses, torch.zeros_like(losses)
        if targets.sample is not None:  # a prediction is the best of all words
            with torch.no_grad():
                mlm_logits = self.mlm_head(masked.detach(), embeddings)
        return losses, _hits(mlm_logits.detach(), nsp_logits.detach(), targets)


class BertForClassification(nn.Module):
    """Classifies a text as one of `num_labels` classes, by a linear layer over its pooled states.

    With one label its output is a real number, for regression.

    `pooling` "mean": the mean of the last hidden states over all real tokens, [CLS] and [SEP]
    included; such a model has no pooler. "cls": the pooled [CLS] (Devlin et al. 2018, 4.1). With
    `classifier_transform` a dense layer, activation and norm follow (Warner et al. 2024). "mask":
    the state at `mask_position`, after the transform of the masked-LM head if the model has one.
    """

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        *,
        pooling: Pooling = "cls",
        mask_position: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels is {num_labels}; give the number of outputs, at least 1.")
        if pooling not in get_args(Pooling):
            raise ValueError(f"pooling is {pooling!r}; known: {', '.join(get_args(Pooling))}.")
        self.config = config if pooling == "cls" else replace(config, pooler=False)
        self.pooling, self.mask_position = pooling, mask_position
        self.encoder = BertEncoder(self.config)
        by_mask = pooling == "mask"
        has_transform = config.mlm_transform if by_mask else config.classifier_transform
        self.transform = Transform(config) if has_transform else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self, config, seed=seed)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None
    ) -> Tensor:
        """Logits [B, num_labels]; the inputs are those of `BertEncoder`."""
        at = None
        if self.pooling == "mask":
            at = input_ids.new_full((len(input_ids), 1), self.mask_position)
        hidden, pooled = self.encoder(input_ids, token_type_ids, attention_mask, positions=at)
        if self.pooling == "mask":
            pooled = hidden.squeeze(1)
        if self.pooling == "mean":
            pooled = mean_of_tokens(hidden, attention_mask)
        logits: Tensor = self.classifier(self.dropout(self.transform(pooled)))
        return logits


def mean_of_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The mean over the real tokens of each row, float32 [B, H]; `attention_mask` bool [B, S]."""
    if attention_mask is None:
        return hidden.float().mean(1)
    is_token = attention_mask[..., None]  # [B, S, 1]
    return (hidden.float() * is_token).sum(1) / is_token.sum(1)


def load_encoder(model: BertForClassification, pretrained: Mapping[str, Tensor]) -> None:
    """Copy the encoder, without the heads, from the state dict of a `BertForPretraining`.

    The pooler is left out too if the model has none; the model's transform, if any, is copied from
    the masked-LM head. Raises ValueError naming the weights that are missing, unexpected, or of
    another shape.
    """

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in pretrained.items() if k.startswith(prefix)}

    encoder = part("encoder.")
    if model.encoder.pooler is None:
        encoder = {name: value for name, value in encoder.items() if not name.startswith("pooler.")}
    try:
        model.encoder.load_state_dict(encoder)
        if isinstance(model.transform, Transform):
            model.transform.load_state_dict(part("mlm_head.transform."))
    except RuntimeError as error:
        raise ValueError(
            "the pretrained encoder does not fit this model; build it from the config stored "
            f"with the weights. {error}"
        ) from error


def masked_lm_loss_sum(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Sum of weighted cross-entropies in nats, float32 scalar.

    `logits` [B, P, W] of any float dtype, `labels` int64 [B, P], `weights` [B, P]: 1 at a masked
    token, 0 in unused slots, whose labels may be anything. Unpadded: [P, W], [P] and [P].
    """
    losses = cross_entropies(logits.flatten(0, -2), _labels(labels, weights))
    return (losses * weights.flatten()).sum()


def _labels(labels: Tensor, weights: Tensor) -> Tensor:
    """The labels in a row, 0 in unused slots."""
    return labels.masked_fill(weights == 0, 0).flatten()


def _losses_with_sample(
    states: Tensor, table: Tensor, bias: Tensor, labels: Tensor, sample: WordSample
) -> Tensor:
    """Cross-entropies, float32 [R], of `states` [R, H] with a softmax of K words and the label.

    Its denominator is an estimate without bias of that of all words: each word of the sample
    counts as often as its weight says, and the label once (Jean et al. 2015, "On using very large
    target vocabulary for neural machine translation", section 3.1, for a fixed sample a step).
    """
    words = len(sample.words)
    # One lookup, so that there is one gradient of the size of the table; and that of indexing adds
    # up in any order.
    ids = torch.cat([sample.words, labels])
    rows, biases = F.embedding(ids, table), F.embedding(ids, bias[:, None]).squeeze(1).float()
    offsets = (biases[:words] + sample.log_weights).to(rows.dtype)
    logits = F.linear(states, rows[:words], offsets)  # [R, K]
    own = (states.float() * rows[words:].float()).sum(-1) + biases[words:]
    columns = labels.new_full((len(table),), -1)
    columns[sample.words] = torch.arange(words, device=labels.device)
    return sampled_cross_entropies(logits, own, columns[labels])


def next_sentence_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of cross-entropies in nats, float32 scalar, over rows that have a label.

    `logits` [B, 2], `labels` int [B]: 0 B follows A, 1 B is random, -1 no sentence B.
    """
    return F.cross_entropy(logits.float(), labels.long(), ignore_index=-1, reduction="sum")


def _hits(mlm_logits: Tensor, nsp_logits: Tensor, targets: Targets) -> Tensor:
    """Correct predictions of masked tokens and of next sentences, float32 [2]."""
    words = (mlm_logits.argmax(-1) == targets.masked_lm_labels) * targets.masked_lm_weights
    pairs = nsp_logits.argmax(-1) == targets.next_sentence_labels
    return torch.stack([words.sum(), pairs.sum().float()])


@torch.no_grad()
def start_decoder_at_unigram(model: BertForPretraining, log_unigram: Tensor) -> None:
    """Set the decoder's bias to the log-probabilities of the tokens, `log_unigram` [V].

    A new model then starts at the unigram loss instead of spending its first hundreds of steps on
    reaching it.
    """
    bias = model.mlm_head.bias
    assert bias is not None, "the decoder has a bias (head_bias)"
    assert log_unigram.shape == bias.shape, "the unigram is of the model's vocabulary"
    bias.copy_(log_unigram)


def count_parameters(model: BertConfig | nn.Module) -> int:
    """Trainable parameters of a model, an encoder, or the pretraining model of a config.

    Padding rows of the vocabulary are not counted, so counts compare with published ones.
    """
    if isinstance(model, BertConfig):
        with torch.device("meta"):  # shapes without memory
            model = BertForPretraining(model)
    config = model.config
    assert isinstance(config, BertConfig)
    padding = config.padded_vocab_size - config.vocab_size
    total = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if name.endswith(("word_embeddings.weight", "decoder.weight")):
            total -= padding * config.hidden_size
    return total
