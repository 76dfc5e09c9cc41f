"""The shape of a model: one frozen dataclass, and the named sizes people ask for.

Field names and defaults are Hugging Face's, so `BertConfig()` is BERT-base (Devlin et al. 2018,
table 1). The fields after `initializer_range` are the places where the models of this family
differ; a preset is nothing but values for them. This file needs no torch, so a command line can
list the presets at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

VOCAB_MULTIPLE = 64  # tensor cores want round matrices; 30,522 columns become 30,528

CHOICES = {
    "hidden_act": ("gelu", "relu"),
    "norm_position": ("post", "pre"),
    "positions": ("learned", "learned-from-sinusoids", "learned-from-neighbours"),
    "init": ("normal", "xavier"),
}
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
SWITCHES = (
    "embedding_norm",
    "final_norm",
    "pooler",
    "mlm_transform",
    "head_bias",
    "tie_word_embeddings",
)


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """What a model is made of. Raises ValueError for values that make no model."""

    #: entries of the tokenizer's vocabulary; the model rounds up inside (`padded_vocab_size`)
    vocab_size: int = 30_522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    #: must divide hidden_size
    num_attention_heads: int = 12
    #: width of the feed-forward layer
    intermediate_size: int = 3072
    #: longest sequence, in tokens
    max_position_embeddings: int = 512
    #: sentence A, sentence B
    type_vocab_size: int = 2
    #: "gelu" (exact) or "relu"
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    #: standard deviation of embeddings, and of matrices where init is "normal"
    initializer_range: float = 0.02

    #: "post": normalize after adding (Devlin et al.); "pre": before a sublayer (Xiong et al. 2020)
    norm_position: str = "post"
    #: normalize the sum of the embeddings; without it a small model stays longer at the unigram
    embedding_norm: bool = True
    #: normalize the last hidden states; for "pre" only, "post" has just done it
    final_norm: bool = False
    #: "learned" from random numbers, "learned-from-sinusoids" (Vaswani et al. 2017, 3.5), or
    #: "learned-from-neighbours": from waves, with each head looking a few words ahead or back
    positions: str = "learned"
    #: "normal": cut at two standard deviations (Devlin et al.); "xavier": uniform (Glorot 2010)
    init: str = "normal"
    #: dense + tanh on [CLS]; without it the heads read the hidden state of [CLS] itself
    pooler: bool = True
    #: dense + activation + norm before the decoder
    mlm_transform: bool = True
    #: biases of the decoder and of the next-sentence head
    head_bias: bool = True
    #: the decoder is the table of word embeddings
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        self._check_types_and_ranges()
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                f"{self.num_attention_heads}: every head gets an equal part. Change one of them."
            )
        width = self.head_size if self.positions == "learned-from-neighbours" else self.hidden_size
        if self.positions != "learned" and width % 2:
            raise ValueError(
                f"positions {self.positions!r} come in pairs of a sine and a cosine, but "
                f"{width} places are odd. Change hidden_size or num_attention_heads."
            )
        if self.final_norm and self.norm_position == "post":
            raise ValueError(
                "final_norm is on, but norm_position 'post' already ends each layer with a norm. "
                "Turn final_norm off, or set norm_position to 'pre'."
            )

    def _check_types_and_ranges(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least 1.")
        for name in SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give true or false.")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; known: {', '.join(known)}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more, below 1.")
        for name in ("layer_norm_eps", "initializer_range"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number above 0.")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word embeddings: vocab_size rounded up. The extra ones are no words."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field name, as a checkpoint stores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BertConfig:
        """The inverse of `to_dict`. Raises ValueError naming the fields this code does not know."""
        _refuse_unknown_fields(values)
        return cls(**values)


def _refuse_unknown_fields(names: Iterable[str]) -> None:
    known = [field.name for field in fields(BertConfig)]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(
            f"unknown model setting: {', '.join(unknown)}. Known: {', '.join(known)}. "
            "Mend the name, or use the version of Clozeline that wrote it."
        )


def _miniature(layers: int, hidden: int) -> BertConfig:
    """One of Google's sizes (Turc et al. 2019): heads of 64, feed-forward layers of 4 hidden."""
    return BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )


# The 17M notebook model. Its count of 17,224,448 parameters at 30,522 words is
#     word embeddings 30,522 x 256 and an untied decoder 256 x 30,522    15,627,264
#     two layers of 789,760                                               1,579,520
#     64 positions, 3 segment ids, 2 next-sentence logits, x 256             17,664
# with neither norms outside the layers nor biases in the heads. Small models leave the unigram
# plateau early only with them, so here they are on: 17,255,740 parameters. The notebook drew its
# matrices with Xavier. What keeps a small model at the unigram is finding out where to look, and
# heads that start on their neighbours need not. After 150 steps of 32 x 64 tokens of the built-in
# sample (4,096 pieces, one seed, mean training loss of the last 50 steps): Xavier and sinusoids
# 6.29 nats, normal matrices and sinusoids 6.06, normal matrices and neighbours 5.48.
_NANO = BertConfig(
    num_hidden_layers=2,
    hidden_size=256,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=64,
    norm_position="pre",
    final_norm=True,
    positions="learned-from-neighbours",
    pooler=False,
    mlm_transform=False,
    tie_word_embeddings=False,
)

PRESETS: dict[str, BertConfig] = {
    "nano": _NANO,
    "bert-tiny": _miniature(2, 128),
    "bert-mini": _miniature(4, 256),
    "bert-small": _miniature(4, 512),
    "bert-medium": _miniature(8, 512),
    "bert-base": _miniature(12, 768),
    "bert-large": _miniature(24, 1024),
}


def preset(name: str, **changes: Any) -> BertConfig:
    """The named preset with some fields changed, as in `preset("base", vocab_size=8192)`.

    "base" is short for "bert-base", and so on. Raises ValueError for unknown names and fields.
    """
    found = PRESETS.get(name) or PRESETS.get(f"bert-{name}")
    if found is None:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}.")
    _refuse_unknown_fields(changes)
    return replace(found, **changes)
