"""The data config: together with the text and the tokenizer, it decides every example."""

import math
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Final, Literal, Self

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import (
    check_between,
    check_choices,
    check_field_names,
    check_types,
    checks_keywords,
)
from clozeline.pipeline.common.errors import OptionError

PairScheme = Literal["segments", "order", "sentences", "none", "packed"]
Masking = Literal["tokens", "whole-words"]

_text = partial(option, group="Text")
_examples = partial(option, group="Examples")
_masks = partial(option, group="Masks")
_curation = partial(option, group="Curation")
_shards = partial(option, group="Shards")


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The options of `clozeline shards` that decide the examples; kept in the manifest.

    >>> DataConfig(max_seq_length=64, pairs="none").masked_lm_prob
    0.15
    """

    num_shards: int | None = _shards(
        None, "Number of training shards; defaults to one per 64 MB of text."
    )
    validation: float = _text(0.01, "Fraction of the documents held out as validation shards.")
    pairs: PairScheme = _examples(
        "segments",
        "How A and B are chosen: `segments` (BERT: B is consecutive or random), `order` (ALBERT: "
        "in order or swapped), `sentences` (adjacent or random sentences), `none` (no B), `packed` "
        "(no B; several documents share a row, and attention stays inside each).",
    )
    max_seq_length: int = _examples(128, "Maximum tokens per example, including [CLS] and [SEP].")
    short_seq_prob: float = _examples(
        0.1, "Fraction of examples built to a random shorter length (`segments`, `order`)."
    )
    masked_lm_prob: float = _masks(0.15, "Fraction of tokens to mask.")
    max_predictions_per_seq: int | None = _masks(
        None,
        "Maximum masked tokens per example; defaults to max_seq_length * masked_lm_prob, "
        "rounded up.",
    )
    masking: Masking = _masks(
        "tokens", "What is masked: single `tokens`, or `whole-words` with all their tokens."
    )
    mask_token_prob: float = _masks(0.8, "Fraction of masked tokens replaced by [MASK].")
    random_token_prob: float = _masks(
        0.1, "Fraction of masked tokens replaced by a random token; the rest are kept."
    )
    dupe_factor: int = _examples(
        1, "Examples made from each span of text, each with new pairs and masks."
    )
    min_characters: int = _text(16, "Drop paragraphs and documents with fewer characters.")
    text_columns: tuple[str, ...] = _text(
        ("text",), "Column (or JSON key) of the text; repeatable: several are joined, one per line."
    )
    max_document_bytes: int = _text(
        64_000_000,
        "Maximum document size in bytes; larger documents are rejected, to limit memory.",
    )
    max_rejected: float = _text(
        0.01, "Fail the job when more than this fraction of the documents is rejected."
    )
    deduplicate: Literal["exact", "near", "none"] = _curation(
        "exact",
        "What is dropped: `exact` copies of a text, `near` ones too (so that no copy of a "
        "held-out document is trained on), or `none`.",
    )
    similarity: float = _curation(
        0.8,
        "With `--deduplicate near`: minimum Jaccard similarity of word 5-grams to count as "
        "near-duplicates.",
    )
    quality: tuple[str, ...] = _curation(
        (),
        "Rules that a document must pass: `gopher`, `c4`, `fineweb` or `none`; repeatable.",
    )
    exclude: tuple[str, ...] = _curation(
        (),
        "Drop documents that share an n-gram of words with a text of this SOURCE, such as a test "
        "set; repeatable.",
    )
    exclude_ngram: int = _curation(13, "Length of the n-grams for --exclude, in words.")
    format: Literal["arrow", "webdataset"] = _shards("arrow", "File format of the shards.")
    compression: Literal["none", "lz4", "zstd"] = _shards(
        "none", "Compression inside a shard; `none` lets the loader memory-map it."
    )
    seed: int = _examples(0, "Random seed.")

    def __post_init__(self) -> None:
        check_choices(self)
        check_between("max_seq_length", self.max_seq_length, 8, 65_535)
        check_between("validation", self.validation, 0.0, 0.5)
        check_between("masked_lm_prob", self.masked_lm_prob, 0.01, 1.0)
        for name in ("max_rejected", "short_seq_prob", "mask_token_prob", "random_token_prob"):
            check_between(name, getattr(self, name), 0.0, 1.0)
        if self.mask_token_prob + self.random_token_prob > 1.0:
            raise OptionError(
                f"mask_token_prob {self.mask_token_prob} and random_token_prob "
                f"{self.random_token_prob} sum to more than 1; lower one of them."
            )
        check_between("dupe_factor", self.dupe_factor, 1, 1000)
        check_between("min_characters", self.min_characters, 0, 1 << 30)
        check_between("max_document_bytes", self.max_document_bytes, 1, 1 << 31)
        check_between("similarity", self.similarity, 0.3, 1.0)
        check_between("exclude_ngram", self.exclude_ngram, 1, 100)
        if self.similarity != DataConfig.similarity and self.deduplicate != "near":
            raise OptionError("similarity is for --deduplicate near; add that, or leave it out.")
        if self.exclude_ngram != DataConfig.exclude_ngram and not self.exclude:
            raise OptionError("exclude_ngram is for --exclude; add that, or leave it out.")
        check_between("seed", self.seed, 0, (1 << 63) - 1)
        if self.num_shards is not None:
            check_between("num_shards", self.num_shards, 1, 100_000)
        if self.max_predictions_per_seq is not None:
            check_between("max_predictions_per_seq", self.max_predictions_per_seq, 1, 65_535)
        if not self.text_columns:
            raise OptionError("text_columns is empty; name the column that holds the text.")

    @property
    def predictions(self) -> int:
        """`max_predictions_per_seq`, or its default."""
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq
        return math.ceil(self.max_seq_length * self.masked_lm_prob)

    @property
    def has_pairs(self) -> bool:
        """Whether examples have a B."""
        return self.pairs not in ("none", "packed")

    @property
    def has_short(self) -> bool:
        """Whether `short_seq_prob` of the examples are short on purpose."""
        return self.pairs in ("segments", "order")

    @property
    def is_packed(self) -> bool:
        """Whether several documents share a row."""
        return self.pairs == "packed"

    @property
    def negative_pairs(self) -> str:
        """What pairs of label 1 are: "random" (B is from another document) or "swapped"."""
        return "swapped" if self.pairs == "order" else "random"

    @property
    def keep_token_prob(self) -> float:
        """Fraction of masked tokens that stay as they are."""
        return 1.0 - (self.mask_token_prob + self.random_token_prob)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them; of curation, what is not the default."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name not in CURATION or (value or None) != (getattr(DataConfig, name) or None)
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config of `to_dict`'s values. Raises ValueError for a dict with other fields."""
        check_field_names(cls, {*CURATION, *values})
        tuples = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        config = cls(**values | tuples)
        check_types(config)
        return config


#: Fields that the manifest only has where they differ from the default.
CURATION: Final = tuple(f.name for f in fields(DataConfig) if f.metadata["group"] == "Curation")
