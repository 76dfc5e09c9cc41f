"""`clozeline verify`: is the data set on disk what its manifest says, and what BERT expects?

Three parts, and nothing is sampled:

    files    each present and whole, the very bytes of the manifest; none that it does not name
    rows     an audit of what must hold of every example; what the manifest counts is counted again
    source   (if the sources are given) each A and B is a stretch of the document it names

The manifest's `dataset_digest` is over the digests of the rows: it is checked when the manifest is
read, and they are checked here. A damaged shard is named, and not looked into.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline.common.errors import InputError
from pipeline.dataset.buckets import TRAIN, VALIDATION
from pipeline.dataset.manifest import (
    LENGTH_BIN,
    MANIFEST,
    TOKENIZER,
    Manifest,
    ShardEntry,
    read_manifest,
)
from pipeline.dataset.schema import Examples
from pipeline.dataset.shards import file_sha256, read_shard, rows_sha256, shard_name
from pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from pipeline.verify.findings import Findings
from pipeline.verify.row_checks import check_rows
from pipeline.verify.source_check import Source, read_sources


def verify(folder: Path, sources: Sequence[str] = ()) -> Iterator[str]:
    """The faults found, one line each; none for a sound data set.

    Raises InputError where there is no manifest or no readable tokenizer, or a source cannot be
    read.
    """
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer_digest:
        yield (
            f"{folder / TOKENIZER} has digest {tokenizer.digest[:12]}, the manifest says "
            f"{manifest.tokenizer_digest[:12]}"
        )
        return
    yield from _stray_files(folder, manifest)
    yield from (f"{MANIFEST}: {fault}" for fault in _misnamed(manifest, tokenizer))
    with read_sources(sources, folder, manifest) if sources else nullcontext() as source:
        yield from _Verification(folder, manifest, tokenizer, source).faults()


@dataclass
class _Verification:
    """The look at all shards, one after the other."""

    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    source: Source | None

    def faults(self) -> Iterator[str]:
        """Of all shards, then of the manifest."""
        token_counts: NDArray[np.int64] | None = np.zeros(self.tokenizer.vocab_size, np.int64)
        numbered = list(enumerate(_numbered(self.manifest)))
        shards = tqdm(numbered, desc="verifying", unit="shard", disable=None)
        for bucket, (number, entry) in shards:
            faults = Findings()
            examples = self._sound_rows(number, entry, faults)
            if examples is None:
                token_counts = None  # cannot be known any more
            elif token_counts is not None and entry.split == TRAIN:
                token_counts += np.bincount(
                    examples.unmasked().input_ids.values, minlength=len(token_counts)
                )
            if self.source:
                self.source.compare(bucket, examples, faults)
            yield from (f"{entry.name}: {line}" for line in faults.lines())
        if token_counts is not None:
            token_counts[self.tokenizer.is_special] = 0
            yield from self._token_counts(token_counts)
        if self.source:
            yield from (f"{MANIFEST}: {line}" for line in self.source.differences())

    def _sound_rows(self, number: int, entry: ShardEntry, faults: Findings) -> Examples | None:
        """The rows of a shard, if they can be taken apart."""
        try:
            examples = _read_whole(self.folder / entry.name, entry)
        except InputError as error:
            faults.say(str(error))
            return None
        if len(examples) != entry.rows:
            faults.say(f"{len(examples):,} rows, the manifest says {entry.rows:,}")
        elif rows_sha256(examples) != entry.rows_sha256:
            faults.say("its rows changed (another rows_sha256 than the manifest's)")
        lengths = np.bincount(np.maximum(examples.input_ids.lengths - 1, 0) // LENGTH_BIN)
        if lengths.tolist() != entry.length_histogram:
            faults.say("its rows have other lengths than the manifest's length_histogram")
        can_be_taken_apart = check_rows(
            examples,
            faults,
            split=entry.split,
            shard=number,
            config=self.manifest.config,
            tokenizer=self.tokenizer,
            nothing_to_mask=self.manifest.dropped.get("nothing_to_mask", 0),
        )
        return examples if can_be_taken_apart else None

    def _token_counts(self, counted: NDArray[np.int64]) -> Iterator[str]:
        recorded = np.array(self.manifest.token_counts, dtype=np.int64)
        if len(recorded) != len(counted):
            yield f"{MANIFEST}: {len(recorded):,} token_counts for {len(counted):,} pieces"
            return
        differ = np.flatnonzero(recorded != counted)
        if len(differ):
            first = differ[0]
            yield (
                f"{MANIFEST}: other token_counts than the rows: {len(differ):,}, the first of id "
                f"{first:,}: {recorded[first]:,}, and the rows have {counted[first]:,}"
            )


def _read_whole(path: Path, entry: ShardEntry) -> Examples:
    """Raises InputError with what is wrong with the file."""
    if not path.exists():
        raise InputError("missing")
    size = path.stat().st_size
    if size != entry.bytes:
        raise InputError(f"{size:,} bytes, the manifest says {entry.bytes:,}")
    if file_sha256(path) != entry.sha256:
        # Not looked into: Arrow believes the lengths and offsets it finds, and may read anywhere.
        raise InputError("its bytes changed (another sha256 than the manifest's)")
    return read_shard(path)


def _numbered(manifest: Manifest) -> Iterator[tuple[int, ShardEntry]]:
    """Each shard with its number in its split, in the order of the buckets."""
    for split in (TRAIN, VALIDATION):
        yield from enumerate(manifest.of_split(split))


def _misnamed(manifest: Manifest, tokenizer: Tokenizer) -> Iterator[str]:
    if manifest.vocab_size != tokenizer.vocab_size:
        yield f"vocab_size is {manifest.vocab_size:,}, the tokenizer's {tokenizer.vocab_size:,}"
    for number, entry in _numbered(manifest):
        count = len(manifest.of_split(entry.split))
        name = shard_name(entry.split, number, count, manifest.config.format)
        if entry.name != name:
            yield f"shard {number} of {entry.split} is called {entry.name}, not {name}"


def _stray_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    named = {entry.name for entry in manifest.shards}
    for name in sorted(path.name for path in folder.iterdir()):
        if name.startswith((f"{TRAIN}-", f"{VALIDATION}-")) and name not in named:
            yield f"{name}: not in the manifest"


def summary(manifest: Manifest, sources: Sequence[str] = ()) -> str:
    """One line about a sound data set, and how far it was looked into."""
    looked = f"compared with {', '.join(sources)}" if sources else "the source was not looked at"
    return (
        f"{len(manifest.shards)} shards and {manifest.num_examples(TRAIN):,} training examples are "
        f"sound: bytes, manifest, pairs, masks; {looked}; dataset digest "
        f"{manifest.dataset_digest[:12]}"
    )
