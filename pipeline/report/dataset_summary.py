"""A finished data set as plain data: what its report and its card show."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from clozeline.pipeline.common.json_files import json_values
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.dataset.manifest import (
    DROPPED,
    JOB,
    REJECTED,
    TOKENIZER,
    Manifest,
    ShardEntry,
    read_manifest,
)
from clozeline.pipeline.report.row_statistics import RowStatistics, shard_statistics
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer


class ShardSummary(NamedTuple):
    entry: ShardEntry
    tokens: int
    pairs: int  # rows with a B
    negative_share: float  # of these


@dataclass(frozen=True, kw_only=True)
class DatasetSummary:
    manifest: Manifest
    tokenizer: Tokenizer
    splits: dict[str, RowStatistics]  # `train` and `validation`, even without rows
    shards: list[ShardSummary]
    job: dict[str, Any]  # job.json; empty if there is none
    rejected: list[dict[str, str]]  # "where", "reason"
    dropped: list[dict[str, Any]]  # "reason", "document", "text", "value"; a copy also "kept_text"

    @property
    def all_rows(self) -> RowStatistics:
        return self.splits[TRAIN] + self.splits[VALIDATION]


def summarize_dataset(folder: AnyPath) -> DatasetSummary:
    """Read the whole data set, a record batch at a time.

    Raises InputError if the folder is not a data set, or a file of it cannot be read.
    """
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    width = manifest.config.max_seq_length
    splits = {split: RowStatistics.empty(width) for split in (TRAIN, VALIDATION)}
    shards = []
    for entry in manifest.shards:
        counted = shard_statistics(folder / entry.name, entry, width, tokenizer)
        splits[entry.split] += counted
        pairs = int(counted.labels[1:].sum())
        shards.append(ShardSummary(entry, counted.tokens, pairs, counted.negative_share))
    return DatasetSummary(
        manifest=manifest,
        tokenizer=tokenizer,
        splits=splits,
        shards=shards,
        job=read_job(folder),
        rejected=list(_lines(folder / REJECTED)),
        dropped=list(_lines(folder / DROPPED)),
    )


def read_job(folder: AnyPath) -> dict[str, Any]:
    """The contents of job.json; empty if there is none."""
    path = folder / JOB
    if not path.exists():
        return {}
    with json_values(path, "delete it") as values:
        return values


def _lines(path: AnyPath) -> Iterator[dict[str, Any]]:
    data = path.read_bytes() if path.exists() else b""
    yield from map(json.loads, data.splitlines())  # of bytes: U+2028 ends no line of JSON
