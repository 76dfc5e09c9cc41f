"""A finished data set as plain data: what its page shows.

work/shards  ->  DatasetSummary: manifest, tokenizer, counts over the rows of each split, ...

Counts add up: a shard's are the sum of its batches', a split's the sum of its shards'.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import check_types
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import refuse_malformed, unsealed
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.dataset.manifest import (
    DROPPED,
    REJECTED,
    TOKENIZER,
    Manifest,
    read_manifest,
)
from clozeline.pipeline.dataset.schema import NO_PAIR, Examples, from_record_batch
from clozeline.pipeline.dataset.shards import read_batches
from clozeline.pipeline.sources.documents import Rejected
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

Counts = NDArray[np.int64]
Record = TypeVar("Record")

ADVICE: Final = "delete it"


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Counts over rows; S = max_seq_length, all int64."""

    lengths: Counts  # rows by number of tokens, [CLS] and [SEP] included, [S + 1]
    pieces: Counts  # pieces of packed rows, [1]
    maskable: Counts  # tokens that may be masked, [1]
    shown_as: Counts  # masked tokens that are shown as [MASK], as another, as themselves, [3]
    labels: Counts  # rows without B, with a B that follows A, with a random or swapped B, [3]
    unknown: Counts  # tokens that stand for unknown text, before masking, [1]

    @classmethod
    def empty(cls, width: int) -> Self:
        """Statistics of no rows; `width` is S."""
        sizes = {"lengths": width + 1, "pieces": 1, "maskable": 1, "unknown": 1}
        sizes |= {"shown_as": 3, "labels": 3}
        return cls(**{name: np.zeros(size, np.int64) for name, size in sizes.items()})

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def rows(self) -> int:
        return int(self.lengths.sum())

    @property
    def tokens(self) -> int:
        """Tokens of all rows, [CLS] and [SEP] included."""
        return int(self.lengths @ np.arange(len(self.lengths)))

    @property
    def fill_rate(self) -> float:
        """The fraction of real tokens in a batch padded to S; 0 without rows."""
        return fraction(self.tokens, self.rows * (len(self.lengths) - 1))

    @property
    def negative_share(self) -> float:
        """The fraction of label 1 (random or swapped) among rows with a B; 0 if no row has one."""
        return fraction(self.labels[2], self.labels[1] + self.labels[2])


@dataclass(frozen=True)
class DroppedDocument:
    """A line of dropped.jsonl: a sample of the documents that curation dropped."""

    reason: str
    document: str  # its hash
    text: str
    value: float  # what decided
    kept: str = ""  # hash of the document that was kept, or of an excluded text
    kept_text: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetSummary:
    manifest: Manifest
    tokenizer: Tokenizer
    splits: dict[str, RowStatistics]  # `train` and `validation`, even without rows
    rejected: list[Rejected]
    dropped: list[DroppedDocument]

    @property
    def all_rows(self) -> RowStatistics:
        return self.splits[TRAIN] + self.splits[VALIDATION]


def summarize_dataset(folder: AnyPath) -> DatasetSummary:
    """Read the whole data set, a record batch at a time.

    Raises InputError if the folder is not a data set, or a file of it cannot be read.
    """
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer_digest:
        raise InputError(
            f"{folder / TOKENIZER} is not the tokenizer of the shards; restore it, or build them "
            "again with `clozeline shards --overwrite`."
        )
    width = manifest.config.max_seq_length
    splits = dict.fromkeys((TRAIN, VALIDATION), RowStatistics.empty(width))
    for entry in manifest.shards:
        for batch in read_batches(folder / entry.name, expected=entry.checksum):
            splits[entry.split] += count_rows(from_record_batch(batch), width, tokenizer)
    return DatasetSummary(
        manifest=manifest,
        tokenizer=tokenizer,
        splits=splits,
        rejected=list(_records(folder / REJECTED, Rejected)),
        dropped=list(_records(folder / DROPPED, DroppedDocument)),
    )


def fraction(part: float, whole: float) -> float:
    """part / whole, and 0 for an empty whole."""
    return float(part) / float(whole) if whole else 0.0


def _records(path: AnyPath, kind: type[Record]) -> Iterator[Record]:
    """The lines of a file, each of this dataclass; none if there is no file."""
    with refuse_malformed(path, ADVICE):
        data = path.read_bytes() if path.exists() else b""
        for line in data.splitlines():  # of bytes: U+2028 ends no line of JSON
            record = kind(**unsealed(json.loads(line), required=False))
            check_types(record)
            yield record


def count_rows(examples: Examples, width: int, tokenizer: Tokenizer) -> RowStatistics:
    """The statistics of rows that fit the width and the vocabulary."""
    original = examples.unmasked().input_ids.values
    hidden, pieces = examples.flat_positions(), examples.piece_lengths
    shown, labels = examples.input_ids.values[hidden], examples.masked_lm_labels.values
    is_mask, is_kept = shown == tokenizer.mask_id, shown == labels
    return RowStatistics(
        lengths=np.bincount(examples.input_ids.lengths, minlength=width + 1),
        pieces=np.array([len(pieces.values) if pieces else 0]),
        maskable=np.array([(~tokenizer.is_special[original]).sum()]),
        shown_as=np.array([is_mask.sum(), (~is_mask & ~is_kept).sum(), is_kept.sum()]),
        labels=np.bincount(examples.next_sentence_label.astype(np.int64) - NO_PAIR, minlength=3),
        unknown=np.array([_unknown(examples, original, tokenizer)]),
    )


def _unknown(examples: Examples, original: NDArray[Any], tokenizer: Tokenizer) -> int:
    """The tokens that stand for unknown text, before masking.

    Where [CLS] or [SEP] is the same token, as in GPT-2, those do not count.
    """
    marks = zip((tokenizer.cls_id, tokenizer.sep_id), examples.cls_and_sep(), strict=True)
    others = sum(number.sum() for mark, number in marks if mark == tokenizer.unk_id)
    return int((original == tokenizer.unk_id).sum() - others)
