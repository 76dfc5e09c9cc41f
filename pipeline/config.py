"""The data config: what decides a shard's rows besides the text and the tokenizer."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from pipeline.common.config_options import option

Pairs = Literal["segments", "sentences", "none"]
Format = Literal["arrow", "webdataset"]
Compression = Literal["none", "lz4", "zstd"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The choices of `clozeline shards`; they stand in the manifest."""

    num_shards: int | None = option(
        None, "Number of training shards; defaults to one per 64 MB of text."
    )
    validation: float = option(0.01, "Fraction of the documents held out as validation shards.")
    pairs: Pairs = option(
        "segments",
        "How A and B are chosen: `segments` (BERT's), `sentences` (adjacent sentences), `none` "
        "(no B).",
    )
    max_seq_length: int = option(128, "Maximum tokens per example, including [CLS] and [SEP].")
    short_seq_prob: float = option(
        0.1, "Fraction of examples built to a random shorter length (`segments`)."
    )
    masked_lm_prob: float = option(0.15, "Fraction of tokens to mask.")
    max_predictions_per_seq: int | None = option(
        None,
        "Maximum masked tokens per example; defaults to max_seq_length * masked_lm_prob, "
        "rounded up.",
    )
    whole_word: bool = option(False, "Mask whole words instead of WordPiece tokens.")
    dupe_factor: int = option(
        1, "Examples made from each span of text, each with new pairs and masks."
    )
    min_characters: int = option(16, "Drop paragraphs and documents with fewer characters.")
    text_columns: tuple[str, ...] = option(
        ("text",), "Columns (or JSON keys) of the text; several are joined, one per line."
    )
    max_rejected: float = option(
        0.01, "Fail the job when more than this fraction of the documents is rejected."
    )
    format: Format = option("arrow", "File format of the shards.")
    compression: Compression = option(
        "none", "Compression inside a shard; `none` lets the loader memory-map it."
    )
    seed: int = option(0, "Random seed.")

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
