"""The last step of a job: all shard records to manifest.json, rejected.jsonl and dropped.jsonl."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import CorruptDataError, InputError, JobFailedError
from clozeline.pipeline.common.json_files import MALFORMED
from clozeline.pipeline.common.paths import AnyPath, read_ranges, sizes_in, whole_file
from clozeline.pipeline.curation.dropped import documents_read
from clozeline.pipeline.dataset.buckets import TRAIN
from clozeline.pipeline.dataset.manifest import (
    DROPPED,
    REJECTED,
    Manifest,
    ShardEntry,
    write_manifest,
)
from clozeline.pipeline.dataset.schema import schema_version
from clozeline.pipeline.sources.formats import all_rejected
from clozeline.pipeline.sources.source_query import portable_names
from clozeline.pipeline.steps.context import JobContext, portable_config
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import ShardRecord

LONE = "Single sentences make no pairs; give --pairs none, or longer documents."
#: What to do where there is no example, by the reason that took most.
NO_EXAMPLES = {
    **dict.fromkeys(("surplus_random_pair", "single_sentence_paragraph", "lone_sentence"), LONE),
    "nothing_to_mask": "The vocabulary has no token for their words: WordPiece does not split "
    "words of over 100 characters. Learn one from this text, for example with --model bpe.",
}


class Totals:
    """Shard records added up as they are read, in bounded memory."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.shards: list[ShardEntry] = []
        self.counts = steps.counts()
        self.token_counts = np.zeros(steps.context.vocab_size, np.int64)
        self.repeat = 1

    def add(self, record: ShardRecord) -> None:
        """Add a shard; the manifest lists shards in the order in which they are added."""
        self.shards.append(record.entry)
        self.counts.add(record.counts)
        if len(record.token_counts):  # validation shards count no tokens
            self.token_counts += record.token_counts
        self.repeat = max(self.repeat, record.repeat)

    def manifest(self) -> Manifest:
        context, mixture = self.steps.context, self.steps.mixture
        names = portable_names([source.source for source in mixture])
        return Manifest(
            config=portable_config(context.config),
            tokenizer_digest=context.tokenizer_digest,
            vocab_size=context.vocab_size,
            sources_digest=context.sources_digest,
            shards=self.shards,
            counts=_sorted(self.counts.read)
            | {"rejected": len(self.counts.rejected)}
            | ({"repeat": self.repeat} if self.repeat > 1 else {}),
            dropped=_sorted(self.counts.dropped),
            token_counts=self.token_counts.tolist(),
            mixture=[replace(s, source=name) for s, name in zip(mixture, names, strict=True)],
            schema_version=schema_version(packed=context.config.is_packed),
        )


def finish_dataset(steps: Steps, records: Sequence[AnyPath] | None = None) -> Manifest:
    """The last step: check what was rejected, then write the manifest.

    `records` are those of all shards, in their order, if the token cache does not say where.

    Raises as `check_read`, InputError if the sources give no training example, and CorruptDataError
    if a shard is missing or damaged; in all cases, no manifest is written.
    """
    context, totals = steps.context, Totals(steps)
    if records is None:
        records = [steps.record_path(bucket) for bucket in range(len(context.buckets))]
    for record in _read_records(context, records):
        totals.add(record)
    manifest = totals.manifest()
    _write_lines(context.out_dir / REJECTED, totals.counts.rejected)
    samples = totals.counts.samples.items()
    dropped = [{"reason": reason, **sample} for reason, every in samples for sample in every]
    _write_lines(context.out_dir / DROPPED, dropped)
    check_read(totals.counts, context)
    if not manifest.num_examples(TRAIN):
        raise InputError(_no_examples(totals.counts))
    write_manifest(context.out_dir, manifest)
    return manifest


def _read_records(context: JobContext, paths: Sequence[AnyPath]) -> Iterator[ShardRecord]:
    """The records of all shards, in the order of their buckets."""
    built = sizes_in(context.out_dir)
    read = read_ranges([(path, 0, None) for path in paths])
    for bucket, path in enumerate(paths):
        shard = context.shard_path(bucket)
        try:
            record = ShardRecord.from_json(next(read).to_pybytes())
        except (OSError, *MALFORMED) as error:
            raise CorruptDataError(f"{path} is missing or damaged; rerun the command.") from error
        if built.get(shard.name) != record.entry.bytes:
            raise CorruptDataError(f"{shard} is missing or damaged; rerun the command.")
        yield record


def _write_lines(path: AnyPath, entries: list[dict[str, Any]]) -> None:
    if not entries:
        path.unlink(missing_ok=True)
        return
    lines = sorted(json.dumps(entry, ensure_ascii=False) for entry in entries)
    with whole_file(path) as file:  # another task may write the same
        file.write(("\n".join(lines) + "\n").encode())


def check_read(total: Counts, context: JobContext) -> None:
    """Raises JobFailedError if too many documents were rejected.

    InputError if none is left. Before a data set is replaced, and at the end: then those that were
    rejected are listed.
    """
    rejected = total.rejected
    seen = len(rejected) + documents_read(total.read, total.dropped)
    if rejected and len(rejected) == seen:
        raise all_rejected(seen, rejected[0]["where"], rejected[0]["reason"])
    allowed = math.floor(seen * context.config.max_rejected + 1e-6)  # 100 * 0.29 is below 29
    if len(rejected) > allowed:
        first = rejected[0]
        listed = "" if context.replaces else f", all are in {context.out_dir / REJECTED}"
        raise JobFailedError(
            f"{len(rejected)} of {seen} documents were rejected, more than the {allowed} "
            f"that --max-rejected {context.config.max_rejected} allows; the first is "
            f"{first['where']} ({first['reason']}){listed}. Fix the source or allow more."
        )
    if not total.read["documents"]:
        raise InputError(_no_examples(total))


def check_examples(steps: Steps) -> None:
    """Raises InputError if no training shard will have an example, and as `check_read`.

    Makes the rows of the first shard that has some.
    """
    total = steps.counts()
    check_read(total, steps.context)
    for bucket in range(steps.context.buckets.num_train):
        examples, dropped, _ = steps.make_rows(bucket)
        if len(examples):
            return
        total.dropped += dropped
    raise InputError(_no_examples(total))


def _no_examples(total: Counts) -> str:
    dropped, documents = _sorted(total.dropped), total.read["documents"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    if not documents and any(reason.startswith(("quality_", "excluded")) for reason in dropped):
        return (
            f"every document was dropped ({reasons}). Leave out the --quality that took most, give "
            "a larger --exclude-ngram, or other text; --dry-run shows the shares."
        )
    if not documents and not dropped:
        return "there is no document in the sources; give text that is not empty."
    others = [reason for reason in dropped if reason != "duplicate_document"]
    most = max(others, key=lambda reason: dropped[reason], default="")
    advice = NO_EXAMPLES.get(
        most,
        "Give more text, fewer --num-shards, a smaller --min-characters or --validation, or "
        "--pairs none.",
    )
    return (
        f"no examples could be built from the sources (documents read: {documents:,}; "
        f"dropped: {reasons or 'nothing'}). {advice}"
    )


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counter.items()) if count}
