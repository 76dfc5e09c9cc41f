"""The last step of a job: all shard records to manifest.json, rejected.jsonl and job.json."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.dataset.buckets import TRAIN
from clozeline.pipeline.dataset.manifest import JOB, REJECTED, Manifest, write_manifest
from clozeline.pipeline.dataset.schema import schema_version
from clozeline.pipeline.job.steps import JobContext, ShardRecord
from clozeline.pipeline.sources.documents import TRUNCATED


@dataclass
class ShardTotals:
    """Shard records, with their token counts added up: kept per shard they would take gigabytes."""

    records: list[ShardRecord] = field(default_factory=list)
    token_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, record: ShardRecord) -> None:
        """Add a shard."""
        self._add_counts(record.token_counts)
        self.records.append(replace(record, token_counts=record.token_counts[:0].copy()))

    def merge(self, other: Self) -> None:
        """Add the shards of another process."""
        self._add_counts(other.token_counts)
        self.records += other.records

    def _add_counts(self, counts: NDArray[np.integer[Any]]) -> None:
        if len(counts):
            self.token_counts = counts + (self.token_counts if len(self.token_counts) else 0)
            self.token_counts = self.token_counts.astype(np.int64, copy=False)


def finish_dataset(totals: ShardTotals, *, context: JobContext) -> Manifest:
    """The last step: check what was rejected, then write the manifest.

    Raises JobFailedError if too many documents were rejected, and InputError if the sources give no
    training example; in both cases, no manifest is written.
    """
    ordered = sorted(totals.records, key=lambda record: record.bucket)
    assert [record.bucket for record in ordered] == list(range(len(context.buckets)))
    manifest, total = assemble_manifest(totals, context=context)
    _write_rejected(context.out_dir / REJECTED, total.rejected)
    _check_rejected(total, context)
    if not manifest.num_examples(TRAIN):
        raise InputError(_no_examples(manifest))
    _write_job(context.out_dir / JOB, total, ordered)
    write_manifest(context.out_dir, manifest)
    return manifest


def assemble_manifest(totals: ShardTotals, *, context: JobContext) -> tuple[Manifest, Counts]:
    """The manifest of all shards, in the order of their buckets, and their counts added up."""
    ordered = sorted(totals.records, key=lambda record: record.bucket)
    total = Counts()
    for record in ordered:
        total.add(record.counts)
    repeat = max(record.repeat for record in ordered)
    manifest = Manifest(
        config=context.config,
        tokenizer_digest=context.tokenizer_digest,
        vocab_size=context.vocab_size,
        sources_digest=context.sources_digest,
        shards=[record.entry for record in ordered],
        counts=_sorted(total.read)
        | {"rejected": len(total.rejected)}
        | ({"repeat": repeat} if repeat > 1 else {}),
        dropped=_sorted(total.dropped),
        token_counts=totals.token_counts.tolist(),
        schema_version=schema_version(packed=context.config.is_packed),
    )
    return manifest, total


def _write_job(path: AnyPath, total: Counts, records: list[ShardRecord]) -> None:
    """Add what only the workers know; the process that started the job adds the rest."""
    values = json.loads(path.read_bytes()) if path.exists() else {}
    values |= {
        "stages": {name: round(seconds, 3) for name, seconds in total.seconds.items()},
        "peak_worker_megabytes": max(record.peak_memory for record in records) // 1_000_000,
    }
    with whole_file(path) as file:
        file.write(json.dumps(values).encode())


def _write_rejected(path: AnyPath, rejected: list[dict[str, str]]) -> None:
    path.unlink(missing_ok=True)
    if rejected:
        lines = sorted(json.dumps(entry, ensure_ascii=False) for entry in rejected)
        with whole_file(path) as file:
            file.write(("\n".join(lines) + "\n").encode())


def _check_rejected(total: Counts, context: JobContext) -> None:
    # An option of their own decides about sources that end early.
    rejected = [entry for entry in total.rejected if entry.get("kind") != TRUNCATED]
    seen = len(rejected) + total.read["documents"]
    allowed = math.floor(seen * context.config.max_rejected + 1e-6)  # 100 * 0.29 is below 29
    if len(rejected) > allowed:
        first = rejected[0]
        raise JobFailedError(
            f"{len(rejected)} of {seen} documents were rejected, more than the {allowed} "
            f"that --max-rejected {context.config.max_rejected} allows; the first is "
            f"{first['where']} ({first['reason']}), all are in {context.out_dir / REJECTED}. "
            "Fix the source or allow more."
        )


def _no_examples(manifest: Manifest) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest.dropped.items())
    documents = manifest.counts.get("documents", 0)
    return (
        f"no examples could be built from the sources (documents read: {documents:,}; "
        f"dropped: {reasons or 'nothing'}). Give more text, fewer --num-shards, a smaller "
        "--min-characters or --validation, or --pairs none."
    )


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counter.items()) if count}
