"""The configuration of a model: one frozen dataclass, and the named presets.

Field names and defaults are Hugging Face's, so `BertConfig()` is BERT-base (Devlin et al. 2018,
table 1). The fields after `initializer_range` are where the models of this family differ; a preset
is a set of values. It does not import torch, so that the command line lists the presets at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from typing import Any, Literal

#: How a classifier makes one vector of a text: mean over its tokens, the pooled [CLS], or the state
#: at the [MASK] of a prompt.
Pooling = Literal["mean", "cls", "mask"]

VOCAB_MULTIPLE = 64  # tensor cores need multiples of 8 or more; 30,522 columns become 30,528

LEARNED = ("learned", "learned-from-sinusoids", "learned-from-neighbours")
CHOICES = {
    "hidden_act": ("gelu", "gelu-tanh", "relu"),
    "norm_position": ("post", "pre", "pre-except-first"),
    "positions": (*LEARNED, "sinusoids", "rotary"),
    "init": ("normal", "normal-residual", "xavier"),
}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The architecture of a model. Raises ValueError for unknown fields and bad values.

    >>> BertConfig(hidden_size=256, num_attention_heads=4).vocab_size
    30522
    """

    #: entries of the tokenizer's vocabulary; the model rounds up internally (`padded_vocab_size`)
    vocab_size: int = 30_522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    #: must divide hidden_size
    num_attention_heads: int = 12
    #: width of the feed-forward layer
    intermediate_size: int = 3072
    #: longest sequence, in tokens
    max_position_embeddings: int = 512
    #: sentence A, sentence B; 0: no segment embeddings, so [SEP] alone shows where B begins
    type_vocab_size: int = 2
    #: "gelu" (exact), "gelu-tanh" (approximate; Hendrycks & Gimpel 2016, 2) or "relu"
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    #: standard deviation of embeddings, and of matrices where init is "normal"
    initializer_range: float = 0.02

    #: segment ids are 0 for padding, 1 and 2 for A and B (BERT-pytorch)
    padding_segment: bool = False
    #: "post": normalize after the residual addition (Devlin et al.); "pre": before a sublayer,
    #: which keeps gradients even across layers, so warm-up matters less (Xiong et al. 2020);
    #: "pre-except-first": the first attention reads the normalized embeddings without a second norm
    #: (Warner et al. 2024, 2.1)
    norm_position: str = "post"
    #: normalize the sum of the embeddings; without it a small model stays at unigram loss longer
    embedding_norm: bool = True
    #: normalize the last hidden states; only for "pre", since "post" already does
    final_norm: bool = False
    #: "learned": initialized at random; "learned-from-sinusoids" (Vaswani et al. 2017, 3.5);
    #: "learned-from-neighbours": sinusoids, and half of the heads start by attending to neighbours;
    #: "sinusoids": fixed, at the scale of new word embeddings; "rotary": queries and keys are
    #: rotated by their position, so scores depend on distances, without weights (Su et al. 2021)
    positions: str = "learned"
    #: base of the frequencies of rotary positions, in layers that attend globally and locally
    global_rope_theta: float = 10_000.0
    local_rope_theta: float = 10_000.0
    #: layers 0, n, 2n ... attend to all tokens, the others to those in a window
    global_attn_every_n_layers: int = 1
    #: width of the window in tokens, even: half of it on either side (Beltagy et al. 2020)
    local_attention: int = 128
    #: "normal": truncated at two standard deviations (Devlin et al.); "xavier": uniform (Glorot
    #: 2010); "normal-residual": the last matrix of each sublayer divided by sqrt(2 * layers), so
    #: that the residual sum does not grow with depth (Radford et al. 2019, 2.3)
    init: str = "normal"
    #: the feed-forward layer is GELU(x W) * (x V), better at equal parameters (Shazeer 2020); 2/3
    #: of the width makes up for the third matrix
    gated: bool = False
    #: biases in linear layers and norms; without them all weights are in matrices (Warner et al.
    #: 2024, 2.1)
    bias: bool = True
    #: dense + tanh on [CLS]; without it the heads read the hidden state of [CLS] itself
    pooler: bool = True
    #: dense + activation + norm before the decoder
    mlm_transform: bool = True
    #: the same between the pooled state and the classes; starts as a copy of the masked-LM head's
    classifier_transform: bool = False
    #: biases of the decoder and of the next-sentence head; the decoder's starts at the unigram
    head_bias: bool = True
    #: the decoder shares the word embeddings
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        self._check_types_and_ranges()
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                f"{self.num_attention_heads}: all heads have the same size. Change one of them."
            )
        by_head = self.positions in ("learned-from-neighbours", "rotary")
        width = self.head_size if by_head else self.hidden_size
        if self.positions != "learned" and width % 2:
            raise ValueError(
                f"positions {self.positions!r} need pairs of a sine and a cosine, but the width "
                f"{width} is odd. Change hidden_size or num_attention_heads."
            )
        if self.padding_segment and self.type_vocab_size < 3:
            raise ValueError(
                f"padding_segment is on, but type_vocab_size {self.type_vocab_size} has no room "
                "for padding, A and B. Set it to 3, or turn padding_segment off."
            )
        if self.norm_position == "pre-except-first" and not self.embedding_norm:
            raise ValueError("norm_position 'pre-except-first' needs embedding_norm; turn it on.")
        if self.classifier_transform and not self.mlm_transform:
            raise ValueError("classifier_transform is on, but mlm_transform is off. Change one.")
        if self.local_attention % 2:
            raise ValueError(f"local_attention is {self.local_attention}; give an even number.")
        if self.final_norm and self.norm_position == "post":
            raise ValueError(
                "final_norm is on, but norm_position 'post' already ends each layer with a norm. "
                "Turn final_norm off, or set norm_position to 'pre'."
            )

    def _check_types_and_ranges(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            least = 0 if name == "type_vocab_size" else 1
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}.")
            if value > (most := LARGEST.get(name, 1 << 24)):
                raise ValueError(f"{name} is {value}; give at most {most:,}.")
        for name in SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give true or false.")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; known: {', '.join(known)}.")
        for name in RATES:
            value, is_dropout = getattr(self, name), name.endswith("dropout_prob")
            if type(value) not in (int, float):
                raise ValueError(f"{name} is {value!r}; give a number.")
            if is_dropout and not 0 <= value < 1:
                raise ValueError(f"{name} is {value}; give 0 or more, below 1.")
            if not is_dropout and not value > 0:
                raise ValueError(f"{name} is {value}; give a number above 0.")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def is_global(self, layer: int) -> bool:
        """Whether a layer, counted from 0, attends to all tokens."""
        return layer % self.global_attn_every_n_layers == 0

    @property
    def has_position_table(self) -> bool:
        """Whether positions are weights; otherwise they are computed."""
        return self.positions in LEARNED

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word embeddings: vocab_size rounded up; the extra rows are not tokens."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field name, as a checkpoint stores them."""
        return asdict(self)


SIZES, RATES, SWITCHES = (
    tuple(field.name for field in fields(BertConfig) if field.type == kind)
    for kind in ("int", "float", "bool")
)
LARGEST = {"num_hidden_layers": 1000, "hidden_size": 1 << 16}  #: guards against bad files


def refuse_unknown_fields(names: Iterable[str]) -> None:
    """Raises ValueError naming those that a `BertConfig` does not have, and what is meant."""
    known = [field.name for field in fields(BertConfig)]
    if unknown := sorted(set(names) - set(known)):
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f". Known: {', '.join(known)}."
        raise ValueError(f"unknown model setting: {', '.join(unknown)}{hint}")


_build = BertConfig.__init__


@wraps(_build)
def _init(self: BertConfig, **values: Any) -> None:
    refuse_unknown_fields(values)  # in place of Python's TypeError
    _build(self, **values)


BertConfig.__init__ = _init  # type: ignore[method-assign]


def _miniature(layers: int, hidden: int) -> BertConfig:
    """One of Google's sizes (Turc et al. 2019): heads of 64, feed-forward layers of 4 hidden."""
    return BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )


def _bert_pytorch(layers: int, hidden: int) -> BertConfig:
    """A size of BERT-pytorch (codertimo 2018): pre-norm, no pooler, linear heads.

    Its next-sentence loss reused the masked-LM loss with `ignore_index=0` and so ignored class 0,
    the random pairs there; here both classes count. Its norm divided by (deviation + eps), and each
    layer had one more dropout at its output; here both are as in the other presets.
    """
    return replace(
        _miniature(layers, hidden),
        type_vocab_size=3,
        padding_segment=True,
        hidden_act="gelu-tanh",
        layer_norm_eps=1e-6,
        norm_position="pre",
        embedding_norm=False,
        positions="sinusoids",
        pooler=False,
        mlm_transform=False,
        tie_word_embeddings=False,
    )


#: What makes a ModernBERT (Warner et al. 2024): all but its sizes, rates and windows. There are no
#: segments, positions are rotary, and biases are in the decoder alone.
MODERN_BERT: dict[str, Any] = {
    "type_vocab_size": 0,
    "norm_position": "pre-except-first",
    "final_norm": True,
    "positions": "rotary",
    "init": "normal-residual",
    "gated": True,
    "bias": False,
    "pooler": False,
    "classifier_transform": True,
}


def _modern(layers: int, hidden: int, width: int | None = None) -> BertConfig:
    """A ModernBERT with heads of 64; texts rarely repeat, so no dropout (Geiping & Goldstein 2022).

    The feed-forward width is 8/3 hidden, rounded up to a multiple of 64, unless given: with three
    matrices as many operations as 4 hidden with two.
    """
    return BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=width or -(-8 * hidden // (3 * 64)) * 64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        global_attn_every_n_layers=3,
        **MODERN_BERT,
    )


# The 17M notebook model with three changes. Its decoder is tied to the embeddings: a word that is
# read or predicted teaches both (docs/manual/speedrun.md). Norms outside the layers and biases in
# the heads: small models leave the unigram plateau early only with them. Heads that start at their
# neighbours, which skips that plateau. No dropout, as in the modern presets.
_NANO = BertConfig(
    num_hidden_layers=2,
    hidden_size=256,
    num_attention_heads=4,
    intermediate_size=1024,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=64,
    norm_position="pre",
    final_norm=True,
    positions="learned-from-neighbours",
    pooler=False,
    mlm_transform=False,
)

# The model of "Dive into Deep Learning" (Zhang et al. 2021, 15.8 to 15.10), in the chapter's sizes.
# There positions bypass autograd and stay random; here they are learned. As in every other preset,
# dropout also applies to the embeddings.
_D2L = BertConfig(
    num_hidden_layers=2,
    hidden_size=128,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=1000,
    hidden_act="relu",
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
    layer_norm_eps=1e-5,
    embedding_norm=False,
    tie_word_embeddings=False,
)

PRESETS: dict[str, BertConfig] = {
    "nano": _NANO,
    "micro": replace(_NANO, num_hidden_layers=4),  # for hours of training instead of minutes
    "bert-tiny": _miniature(2, 128),
    "bert-mini": _miniature(4, 256),
    "bert-small": _miniature(4, 512),
    "bert-medium": _miniature(8, 512),
    "bert-base": _miniature(12, 768),
    "bert-large": _miniature(24, 1024),
    "bert-pytorch-base": _bert_pytorch(12, 768),
    "bert-pytorch-large": _bert_pytorch(24, 1024),
    "d2l": _D2L,
    "modern-nano": _modern(6, 320),
    "modern-mini": _modern(4, 256),
    "modern-small": _modern(4, 512),
    "modern-medium": _modern(12, 512),
    "modern-base": _modern(22, 768, 1152),  # ModernBERT-base (Warner et al. 2024)
}


def preset(name: str, **changes: Any) -> BertConfig:
    """The named preset with some fields changed.

        >>> preset("base", vocab_size=8192).hidden_size
        768

    Raises ValueError for unknown names and fields.
    """
    return replace(PRESETS[full_name(name)], **changes)


def full_name(preset_name: str) -> str:
    """The name of a preset; "base" is short for "bert-base". Raises ValueError for others."""
    for name in (preset_name, f"bert-{preset_name}"):
        if name in PRESETS:
            return name
    near = get_close_matches(preset_name, PRESETS, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"unknown preset {preset_name!r}; known: {', '.join(PRESETS)}.{meant}")
