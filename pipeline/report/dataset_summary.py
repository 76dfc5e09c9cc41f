"""A finished data set as plain data: what its report and its card show."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from clozeline.pipeline.common.config_checks import check_types
from clozeline.pipeline.common.json_files import json_values, refuse_malformed, unsealed
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
from clozeline.pipeline.sources.documents import Rejected
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

Line = TypeVar("Line")

#: Key in job.json, label, unit.
MEASURED = (
    ("seconds", "wall time", "s"),
    ("cpu_seconds", "CPU time", "s"),
    ("megabytes_per_second", "text read", "MB/s"),
    ("peak_memory_megabytes", "peak memory", "MB"),
)
ADVICE: Final = "delete it"


@dataclass(frozen=True)
class DroppedDocument:
    """A line of dropped.jsonl: a sample of the documents that curation dropped."""

    reason: str
    document: str  # its hash
    text: str
    value: float  # what decided
    kept: str = ""  # hash of the document that was kept, or of an excluded text
    kept_text: str = ""


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
        rejected=list(_lines(folder / REJECTED, Rejected)),
        dropped=list(_lines(folder / DROPPED, DroppedDocument)),
    )


def read_job(folder: AnyPath) -> dict[str, Any]:
    """The contents of job.json; empty if there is none."""
    path = folder / JOB
    if not path.exists():
        return {}
    with json_values(path, ADVICE) as values:
        numbers = [
            *values.get("stages", {}).values(),
            *(values.get(key, 0) for key, _, _ in MEASURED),
        ]
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError("a time or size is negative or infinite")
        sources = [*values.get("sources", ()), *values.get("exclude", ())]
        if not all(isinstance(source, str) for source in sources):
            raise ValueError("a source is not text")
        return values


def _lines(path: AnyPath, kind: type[Line]) -> Iterator[Line]:
    """The lines of a file, each of this dataclass; none if there is no file."""
    with refuse_malformed(path, ADVICE):
        data = path.read_bytes() if path.exists() else b""
        for line in data.splitlines():  # of bytes: U+2028 ends no line of JSON
            entry = kind(**unsealed(json.loads(line), required=False))
            check_types(entry)
            yield entry
