"""The data config: what decides a shard's rows besides the text and the tokenizer."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

Pairs = Literal["segments", "sentences", "none"]
Format = Literal["arrow", "webdataset"]
Compression = Literal["none", "lz4", "zstd"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The choices of `clozeline shards`; they stand in the manifest."""

    #: How many training shards; not given: text bytes / 64 MB, rounded up.
    num_shards: int | None = None
    #: The share of documents that make the validation shards.
    validation: float = 0.01
    #: How A and B are made: `segments` (BERT's), `sentences` (neighbours), `none` (no B).
    pairs: Pairs = "segments"
    #: Tokens of an example at most, [CLS] and [SEP] counted.
    max_seq_length: int = 128
    #: The share of examples that aim at a random, shorter length (`segments`).
    short_seq_prob: float = 0.1
    #: The share of tokens that is masked.
    masked_lm_prob: float = 0.15
    #: Masked tokens of an example at most; not given: max_seq_length * masked_lm_prob, rounded up.
    max_predictions_per_seq: int | None = None
    #: Mask whole words, not pieces.
    whole_word: bool = False
    #: Examples made from each stretch of text, with other pairs and other masks.
    dupe_factor: int = 1
    #: Paragraphs and documents of fewer characters are dropped.
    min_characters: int = 16
    #: Columns (or JSON keys) of the text; several are joined, a line each.
    text_columns: tuple[str, ...] = ("text",)
    #: The share of rejected documents that fails the job.
    max_rejected: float = 0.01
    #: `arrow` or `webdataset`.
    format: Format = "arrow"
    #: Of the buffers inside a shard: `none` keeps reading a memory map.
    compression: Compression = "none"
    #: Of every random choice.
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("pairs", self.pairs, get_args(Pairs))
        _one_of("format", self.format, get_args(Format))
        _one_of("compression", self.compression, get_args(Compression))
        _between("max_seq_length", self.max_seq_length, 8, 65_535)
        _between("validation", self.validation, 0.0, 0.5)
        _between("max_rejected", self.max_rejected, 0.0, 1.0)
        _between("short_seq_prob", self.short_seq_prob, 0.0, 1.0)
        _between("masked_lm_prob", self.masked_lm_prob, 0.01, 1.0)
        _between("dupe_factor", self.dupe_factor, 1, 1000)
        _between("min_characters", self.min_characters, 0, 1 << 30)
        _between("seed", self.seed, 0, (1 << 63) - 1)
        if self.num_shards is not None:
            _between("num_shards", self.num_shards, 1, 100_000)
        if self.max_predictions_per_seq is not None:
            _between("max_predictions_per_seq", self.max_predictions_per_seq, 1, 65_535)
        if not self.text_columns:
            raise ValueError("text_columns is empty; name the column that holds the text.")

    @property
    def predictions(self) -> int:
        """`max_predictions_per_seq`, or what follows from the other two."""
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq
        return math.ceil(self.max_seq_length * self.masked_lm_prob)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them."""
        return {**asdict(self), "text_columns": list(self.text_columns)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{**values, "text_columns": tuple(values["text_columns"])})


def _one_of(name: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise ValueError(f"{name} is {found!r}; it is one of {', '.join(allowed)}.")


def _between(name: str, found: float, low: float, high: float) -> None:
    if not low <= found <= high:
        raise ValueError(f"{name} is {found}; it lies between {low} and {high}.")
