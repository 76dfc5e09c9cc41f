"""Rows against their source: every A and B is a stretch of the document that its row names.

The sources are read and tokenized again, by the code that made the shards, into a token cache in a
temporary folder; then a shard at a time is compared with the documents of its bucket, a few
thousand of them at once.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline.common.counter_rng import UInt64Array
from pipeline.common.counts import Counts
from pipeline.config import DataConfig
from pipeline.dataset.buckets import TRAIN, VALIDATION, Buckets
from pipeline.dataset.manifest import Manifest
from pipeline.dataset.schema import Examples
from pipeline.examples.bucket_documents import BucketDocuments
from pipeline.job.steps import JobContext, Steps
from pipeline.job.token_cache import CacheSlice, read_counts, read_documents
from pipeline.sources.formats import list_blocks
from pipeline.verify.findings import Findings
from pipeline.verify.span_checks import check_spans

# A document without a row has lost all of its pairs for one of these reasons.
REASONS = ("nothing_to_mask", "surplus_random_pair", "no_other_document")


@dataclass
class Source:
    """The documents of the sources by bucket, on disk."""

    manifest: Manifest
    context: JobContext
    slices: dict[int, list[CacheSlice]]
    counts: Counts
    missing: int = 0  # documents of the buckets looked at so far that no row names
    is_complete: bool = True  # whether all of these shards could be read

    def compare(self, bucket: int, examples: Examples | None, faults: Findings) -> None:
        """Note what does not hold of the rows of a bucket's shard; None where it is unreadable."""
        context = self.context
        documents, duplicates = read_documents(
            context.cache_dir, self.slices.get(bucket, []), context.vocab_size
        )
        self.counts.dropped["duplicate_document"] += duplicates
        if examples is None:
            self.is_complete = False
            return
        documents_a = _numbers(documents.hashes, examples.document_a)
        documents_b = _numbers(documents.hashes, examples.document_b)
        self._note_strangers(bucket, examples.document_a, documents_a < 0, "A", faults)
        self._note_strangers(bucket, examples.document_b, documents_b < 0, "B", faults)
        known = np.flatnonzero((documents_a >= 0) & (documents_b >= 0))
        check_spans(
            examples,
            documents,
            rows=known,
            documents_a=documents_a,
            documents_b=documents_b,
            config=context.config,
            faults=faults,
        )
        has_row = np.zeros(len(documents), dtype=bool)
        has_row[documents_a[documents_a >= 0]] = True
        due = _makes_rows(documents, context.config)
        self.missing += int((due & ~has_row).sum())

    def differences(self) -> Iterator[str]:
        """What the manifest says otherwise than the sources, once all buckets were compared."""
        manifest = self.manifest
        found = Counter(self.counts.read)
        found["rejected"] += len(self.counts.rejected)
        for name in sorted({*found, *manifest.counts}):
            yield from _difference(f"counts {name}", manifest.counts.get(name, 0), found[name])
        for name, number in sorted(self.counts.dropped.items()):
            yield from _difference(f"dropped {name}", manifest.dropped.get(name, 0), number)
        lost = sum(manifest.dropped.get(reason, 0) for reason in REASONS)
        if self.is_complete and self.missing * manifest.config.dupe_factor > lost:
            yield (
                f"{self.missing:,} documents of the sources are in no row, and the manifest says "
                f"that {lost:,} pairs were left out"
            )

    def _note_strangers(
        self, bucket: int, hashes: UInt64Array, rows: NDArray[np.bool_], side: str, faults: Findings
    ) -> None:
        """Rows whose document is none of the bucket's: where does it belong?"""
        if not rows.any():
            return
        belongs = np.full(len(hashes), -1, dtype=np.int64)
        number = _numbers(self._all_hashes[0], hashes)
        belongs[number >= 0] = self._all_hashes[1][number[number >= 0]]
        split, _ = self.context.buckets.split_of(bucket)
        is_train = belongs < self.context.buckets.num_train
        other_split = (belongs >= 0) & (is_train != (split == TRAIN))
        name = VALIDATION if split == TRAIN else TRAIN
        faults.note(rows & (belongs < 0), f"rows whose {side} is of a document in no source")
        faults.note(rows & other_split, f"rows whose {side} is of a document of {name}")
        elsewhere = rows & (belongs >= 0) & ~other_split
        faults.note(elsewhere, f"rows whose {side} is of a document of another shard")

    @cached_property
    def _all_hashes(self) -> tuple[UInt64Array, NDArray[np.int64]]:
        """The hashes of all documents, sorted, and their buckets; asked for only by faults."""
        context = self.context
        hashes, buckets = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for bucket, slices in self.slices.items():
            documents, _ = read_documents(context.cache_dir, slices, context.vocab_size)
            hashes.append(documents.hashes)
            buckets.append(np.full(len(documents), bucket))
        joined = np.concatenate(hashes)
        order = np.argsort(joined)
        return joined[order], np.concatenate(buckets)[order]


@contextmanager
def read_sources(sources: Sequence[str], folder: Path, manifest: Manifest) -> Iterator[Source]:
    """Tokenize the sources again, for the config of the data set in `folder`.

    The token cache goes to the system's temporary folder (TMPDIR). Raises InputError where
    a source cannot be read.
    """
    config = manifest.config
    blocks = list_blocks(sources, text_columns=config.text_columns)
    with tempfile.TemporaryDirectory(prefix="clozeline-") as scratch:
        context = JobContext(
            out_dir=folder,
            cache_dir=Path(scratch),
            config=config,
            buckets=_buckets(manifest),
            tokenizer_digest=manifest.tokenizer_digest,
            vocab_size=manifest.vocab_size,
            sources_digest=manifest.sources_digest,
        )
        steps, slices, counts = Steps(context), defaultdict(list), Counts()
        size = sum(block.text_bytes for block in blocks)
        with tqdm(desc="tokenizing", total=size, unit="B", unit_scale=True, disable=None) as bar:
            for block in blocks:
                for bucket, part in steps.tokenize_block(block):
                    slices[bucket].append(part)
                counts.add(read_counts(context.cache_path(block)))
                bar.update(block.text_bytes)
        yield Source(manifest, context, dict(slices), counts)


def _buckets(manifest: Manifest) -> Buckets:
    return Buckets(
        num_train=len(manifest.of_split(TRAIN)),
        num_validation=len(manifest.of_split(VALIDATION)),
        validation=manifest.config.validation,
    )


def _makes_rows(documents: BucketDocuments, config: DataConfig) -> NDArray[np.bool_]:
    """The documents of which pairs are made, [D]."""
    if config.pairs == "order":
        return np.diff(documents.document_offsets) > 1
    if config.pairs != "sentences":
        return np.ones(len(documents), dtype=bool)
    has_next = np.flatnonzero(np.diff(documents.paragraphs) == 0)
    makes = np.zeros(len(documents), dtype=bool)
    makes[np.searchsorted(documents.document_offsets, has_next, side="right") - 1] = True
    return makes


def _numbers(hashes: UInt64Array, wanted: UInt64Array) -> NDArray[np.int64]:
    """The index in `hashes` (sorted) of each wanted one, or -1."""
    if not len(hashes):
        return np.full(len(wanted), -1, dtype=np.int64)
    number = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
    return np.where(hashes[number] == wanted, number, -1)


def _difference(name: str, recorded: int, found: int) -> Iterator[str]:
    if recorded != found:
        yield f"{name} is {recorded:,}, the sources give {found:,}"
