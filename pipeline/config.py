"""The data config: together with the text and the tokenizer, it decides every example."""

import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import (
    check_between,
    check_choices,
    check_field_names,
    check_types,
)
from clozeline.pipeline.common.units import token_number

PairScheme = Literal["segments", "order", "sentences", "none", "packed"]
Masking = Literal["tokens", "whole-words"]
Format = Literal["arrow", "webdataset"]
Deduplicate = Literal["exact", "near", "none"]
Compression = Literal["none", "lz4", "zstd"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The options of `clozeline shards` that decide the examples; kept in the manifest.

    >>> DataConfig(max_seq_length=64, pairs="none").masked_lm_prob
    0.15
    """

    num_shards: int | None = option(
        None, "Number of training shards; defaults to one per 64 MB of text.", group="Shards"
    )
    validation: float = option(
        0.01, "Fraction of the documents held out as validation shards.", group="Text"
    )
    pairs: PairScheme = option(
        "segments",
        "How A and B are chosen: `segments` (BERT: B is consecutive or random), `order` (ALBERT: "
        "in order or swapped), `sentences` (adjacent or random sentences), `none` (no B), `packed` "
        "(no B; several documents share a row, and attention stays inside each).",
        group="Examples",
    )
    max_seq_length: int = option(
        128, "Maximum tokens per example, including [CLS] and [SEP].", group="Examples"
    )
    short_seq_prob: float = option(
        0.1,
        "Fraction of examples built to a random shorter length (`segments`, `order`).",
        group="Examples",
    )
    masked_lm_prob: float = option(0.15, "Fraction of tokens to mask.", group="Masks")
    max_predictions_per_seq: int | None = option(
        None,
        "Maximum masked tokens per example; defaults to max_seq_length * masked_lm_prob, "
        "rounded up.",
        group="Masks",
    )
    masking: Masking = option(
        "tokens",
        "What is masked: single `tokens`, or `whole-words` with all their tokens.",
        group="Masks",
    )
    mask_token_prob: float = option(
        0.8, "Fraction of masked tokens replaced by [MASK].", group="Masks"
    )
    random_token_prob: float = option(
        0.1,
        "Fraction of masked tokens replaced by a random token; the rest are kept.",
        group="Masks",
    )
    dupe_factor: int = option(
        1, "Examples made from each span of text, each with new pairs and masks.", group="Examples"
    )
    min_characters: int = option(
        16, "Drop paragraphs and documents with fewer characters.", group="Text"
    )
    text_columns: tuple[str, ...] = option(
        ("text",),
        "Columns (or JSON keys) of the text; several are joined, one per line.",
        group="Text",
    )
    max_document_bytes: int = option(
        64_000_000,
        "Reject documents of more bytes, so that a single one cannot take all memory.",
        group="Text",
    )
    max_rejected: float = option(
        0.01,
        "Fail the job when more than this fraction of the documents is rejected. Sources that end "
        "early do not count.",
        group="Text",
    )
    deduplicate: Deduplicate = option(
        "exact",
        "What is dropped: `exact` copies of a text, `near` ones too (which keeps them out of the "
        "validation shards), or `none`.",
        group="Curation",
    )
    similarity: float = option(
        0.8,
        "Jaccard similarity of the word 5-grams of two documents from which they are near "
        "duplicates (`--deduplicate near`).",
        group="Curation",
    )
    quality: tuple[str, ...] = option(
        (),
        "Rules that a document must pass: `gopher`, `c4`, `fineweb`, `none`, or one rule and its "
        "threshold, as in `min_words=50`; repeatable.",
        group="Curation",
    )
    exclude: tuple[str, ...] = option(
        (),
        "Drop documents that share an n-gram of words with a text of this SOURCE, such as a test "
        "set; repeatable.",
        group="Curation",
    )
    exclude_ngram: int = option(
        13, "Words in a row that a document may not share with --exclude.", group="Curation"
    )
    mix: str = option(
        "",
        "Fraction of the tokens that the sources of a name (?mix=wiki) give, as in "
        "wiki=0.7,reviews=0.3; with --tokens.",
        group="Curation",
    )
    tokens: str = option(
        "",
        "Tokens of the training documents in all, such as 200M, with --mix; documents are left out "
        "or repeated.",
        group="Curation",
    )
    format: Format = option("arrow", "File format of the shards.", group="Shards")
    compression: Compression = option(
        "none", "Compression inside a shard; `none` lets the loader memory-map it.", group="Shards"
    )
    seed: int = option(0, "Random seed.", group="Examples")

    def __post_init__(self) -> None:
        check_choices(self)
        check_between("max_seq_length", self.max_seq_length, 8, 65_535)
        check_between("validation", self.validation, 0.0, 0.5)
        check_between("max_rejected", self.max_rejected, 0.0, 1.0)
        check_between("short_seq_prob", self.short_seq_prob, 0.0, 1.0)
        check_between("masked_lm_prob", self.masked_lm_prob, 0.01, 1.0)
        check_between("mask_token_prob", self.mask_token_prob, 0.0, 1.0)
        check_between("random_token_prob", self.random_token_prob, 0.0, 1.0)
        if self.mask_token_prob + self.random_token_prob > 1.0:
            raise ValueError(
                f"mask_token_prob {self.mask_token_prob} and random_token_prob "
                f"{self.random_token_prob} sum to more than 1; lower one of them."
            )
        check_between("dupe_factor", self.dupe_factor, 1, 1000)
        check_between("min_characters", self.min_characters, 0, 1 << 30)
        check_between("max_document_bytes", self.max_document_bytes, 1, 1 << 31)
        check_between("similarity", self.similarity, 0.3, 1.0)
        check_between("exclude_ngram", self.exclude_ngram, 1, 100)
        if self.similarity != DataConfig.similarity and self.deduplicate != "near":
            raise ValueError("similarity is for --deduplicate near; add that, or leave it out.")
        if self.exclude_ngram != DataConfig.exclude_ngram and not self.exclude:
            raise ValueError("exclude_ngram is for --exclude; add that, or leave it out.")
        check_between("seed", self.seed, 0, (1 << 63) - 1)
        if self.num_shards is not None:
            check_between("num_shards", self.num_shards, 1, 100_000)
        if self.max_predictions_per_seq is not None:
            check_between("max_predictions_per_seq", self.max_predictions_per_seq, 1, 65_535)
        if not self.text_columns:
            raise ValueError("text_columns is empty; name the column that holds the text.")
        if bool(self.mix) != bool(self.tokens):
            raise ValueError(
                "mix and tokens belong together: --mix wiki=0.7,reviews=0.3 --tokens 50M."
            )
        _ = self.budgets  # checks both

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

    @property
    def budgets(self) -> dict[str, int]:
        """The tokens of each name in `mix`. Raises ValueError if it cannot be read."""
        if not self.mix:
            return {}
        parts = [part.partition("=") for part in self.mix.split(",")]
        shares = {name: float(f) for name, _, f in parts if re.fullmatch(r"0?\.[0-9]+|1(\.0+)?", f)}
        if "" in shares or len(shares) < len(parts) or not all(shares.values()):
            raise ValueError(f"mix is {self.mix!r}; give fractions, as in wiki=0.7,reviews=0.3.")
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise ValueError(
                f"mix is {self.mix!r}; its fractions sum to {sum(shares.values()):g}, not 1."
            )
        tokens = token_number(self.tokens, "tokens")
        return {name: round(tokens * share) for name, share in shares.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them; of curation, what is not the default."""
        found = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
        return {n: v for n, v in found.items() if n not in CURATION or v != _stored(n)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config of `to_dict`'s values. Raises ValueError for a dict with other fields."""
        values = {name: _stored(name) for name in CURATION} | values
        check_field_names(cls, values)
        tuples = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        config = cls(**values | tuples)
        check_types(config)
        return config


#: Fields that the manifest only has where they differ from the default.
CURATION: Final = tuple(f.name for f in fields(DataConfig) if f.metadata["group"] == "Curation")


def _stored(name: str) -> Any:
    """The default of a field, as the manifest stores it."""
    default = getattr(DataConfig, name)
    return list(default) if isinstance(default, tuple) else default
