"""`clozeline verify`: is the data set on disk what its manifest says, and what BERT expects?

Three parts; nothing is sampled:

    files    each shard is present and has the sha256 of the manifest; no other shard is there
    rows     every example follows the rules; what the manifest counts is counted again
    source   (if the sources are given) the shards rebuilt from them, by the steps of the job and in
             a temporary folder, have the same rows

The manifest's `dataset_digest` is over the digests of the rows: it is checked when the manifest is
read, and they are checked here. The rows of a damaged shard are not read.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import counted, takes_keywords
from clozeline.pipeline.common.errors import CorruptDataError, InputError, check_packages
from clozeline.pipeline.common.json_files import file_sha256, json_values
from clozeline.pipeline.common.paths import AnyPath, GivenPath, each_given, path_of
from clozeline.pipeline.common.progress_bar import ProgressBar
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION, Buckets
from clozeline.pipeline.dataset.manifest import (
    JOB,
    LENGTH_BIN,
    MANIFEST,
    TOKENIZER,
    Manifest,
    ShardEntry,
    read_manifest,
)
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.dataset.shards import read_shard, rows_sha256, shard_name
from clozeline.pipeline.sources.source_query import portable_names
from clozeline.pipeline.steps.context import blocks_of, scratch_context
from clozeline.pipeline.steps.finish import Totals
from clozeline.pipeline.steps.stages import choose
from clozeline.pipeline.steps.steps import Steps, count_tokens
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.verify.row_checks import Findings, ShardRows, check_rows, differing_rows


@takes_keywords
def verify(folder: GivenPath, sources: GivenPath | Iterable[GivenPath] = ()) -> list[str]:
    """What is wrong with the data set, one line each; nothing for a sound one.

        >>> verify("work/shards")
        []

    Raises InputError if there is no manifest or no readable tokenizer, or a source cannot be read.
    """
    return list(_findings(folder, sources))


def _findings(folder: GivenPath, sources: GivenPath | Iterable[GivenPath]) -> Iterator[str]:
    folder, names = path_of(folder), list(each_given(sources))
    if names:
        check_packages("a comparison with its sources", "nltk", "regex")
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer_digest:
        yield (
            f"{folder / TOKENIZER} has digest {tokenizer.digest[:12]}, the manifest says "
            f"{manifest.tokenizer_digest[:12]}"
        )
        return
    yield from _stray_files(folder, manifest)
    yield from (f"{MANIFEST}: {finding}" for finding in _wrong_entries(manifest, tokenizer))
    excluded = _excluded(folder, manifest)
    with (
        rebuild(names, manifest, tokenizer, exclude=excluded) if names else nullcontext()
    ) as source:
        yield from _Verification(folder, manifest, tokenizer, source).findings()


@dataclass
class _Verification:
    """The check of all shards, one after the other."""

    folder: AnyPath
    manifest: Manifest
    tokenizer: Tokenizer
    source: "Rebuild | None"

    def findings(self) -> Iterator[str]:
        """Problems of all shards, then of the manifest."""
        token_counts: NDArray[np.int64] | None = np.zeros(self.tokenizer.vocab_size, np.int64)
        numbered = list(enumerate(_numbered(self.manifest)))
        bar = {"desc": "verifying", "total": len(numbered), "unit": "shard"}
        for bucket, (number, entry) in ProgressBar(iterable=numbered, **bar):
            findings = Findings()
            examples = self._sound_rows(number, entry, findings)
            if examples is None:
                token_counts = None  # incomplete
            elif token_counts is not None and entry.split == TRAIN:
                token_counts += count_tokens(examples, self.tokenizer)
            if self.source:
                self.source.compare(bucket, examples, findings)
            yield from (f"{entry.name}: {line}" for line in findings.lines())
        if token_counts is not None:
            yield from self._token_counts(token_counts)
        if self.source:
            yield from (f"{MANIFEST}: {line}" for line in self.source.differences())

    def _sound_rows(self, number: int, entry: ShardEntry, findings: Findings) -> Examples | None:
        """The rows of a shard; None if they cannot be read or do not have the shape of examples."""
        try:
            examples = _read_whole(self.folder / entry.name, entry)
        except InputError as error:
            findings.add(str(error))
            return None
        if len(examples) != entry.rows:
            findings.add(f"{counted(len(examples), 'row')}, the manifest says {entry.rows:,}")
        elif rows_sha256(examples) != entry.rows_sha256:
            findings.add("the rows do not have the manifest's rows_sha256")
        lengths = np.bincount(np.maximum(examples.input_ids.lengths - 1, 0) // LENGTH_BIN)
        if lengths.tolist() != entry.length_histogram:
            findings.add("the rows do not have the lengths of the manifest's length_histogram")
        repeat = self.manifest.counts.get("repeat", 1) if entry.split == TRAIN else 1
        rows = ShardRows(
            examples=examples,
            config=self.manifest.config,
            tokenizer=self.tokenizer,
            split=entry.split,
            shard=number,
            copies=repeat * self.manifest.config.dupe_factor,
            findings=findings,
        )
        return examples if check_rows(rows) else None

    def _token_counts(self, counted: NDArray[np.int64]) -> Iterator[str]:
        recorded = np.array(self.manifest.token_counts, dtype=np.int64)
        if len(recorded) != len(counted):
            yield f"{MANIFEST}: {len(recorded):,} token_counts for {len(counted):,} tokens"
            return
        differ = np.flatnonzero(recorded != counted)
        if len(differ):
            first = differ[0]
            yield (
                f"{MANIFEST}: {len(differ):,} token_counts differ from the rows, the first for id "
                f"{first:,}: {recorded[first]:,}, the rows have {counted[first]:,}"
            )


def _excluded(folder: AnyPath, manifest: Manifest) -> tuple[str, ...]:
    """The sources of --exclude as they were given, if job.json still says it."""
    names, job = manifest.config.exclude, folder / JOB
    if not names or not job.exists():
        return names
    with json_values(job, "delete it") as values:
        given = tuple(map(str, values.get("exclude", ())))
    return given if portable_names(given) == list(names) else names


def _read_whole(path: AnyPath, entry: ShardEntry) -> Examples:
    """Raises InputError with what is wrong with the file."""
    if not path.exists():
        raise InputError("missing")
    size = path.stat().st_size
    if size != entry.bytes:
        raise CorruptDataError(f"{size:,} bytes, the manifest says {entry.bytes:,}")
    if file_sha256(path) != entry.sha256:
        # Not parsed: Arrow trusts the lengths and offsets it finds, and may read out of bounds.
        raise CorruptDataError("the file does not have the manifest's sha256")
    return read_shard(path)


def _numbered(manifest: Manifest) -> Iterator[tuple[int, ShardEntry]]:
    """Each shard with its number in its split, in the order of the buckets."""
    for split in (TRAIN, VALIDATION):
        yield from enumerate(manifest.of_split(split))


def _wrong_entries(manifest: Manifest, tokenizer: Tokenizer) -> Iterator[str]:
    if manifest.vocab_size != tokenizer.vocab_size:
        yield f"vocab_size is {manifest.vocab_size:,}, the tokenizer's is {tokenizer.vocab_size:,}"
    for number, entry in _numbered(manifest):
        count = len(manifest.of_split(entry.split))
        name = shard_name(entry.split, number, count, manifest.config.format)
        if entry.name != name:
            yield f"shard {number} of {entry.split} is named {entry.name}, not {name}"


def _stray_files(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    named = {entry.name for entry in manifest.shards}
    for name in sorted(path.name for path in folder.iterdir()):
        if name.startswith((f"{TRAIN}-", f"{VALIDATION}-")) and name not in named:
            yield f"{name}: not in the manifest"


def summary(manifest: Manifest, sources: Sequence[str] = ()) -> str:
    """One line about a sound data set, and what was checked."""
    checked = f"rebuilt from {', '.join(sources)}" if sources else "not compared with its source"
    return (
        f"{counted(len(manifest.shards), 'shard')} with "
        f"{counted(manifest.num_examples(TRAIN), 'training example')} "
        f"{'is' if len(manifest.shards) == 1 else 'are'} sound: "
        f"bytes, manifest, pairs, masks; {checked}; "
        f"dataset digest {manifest.dataset_digest[:12]}"
    )


@dataclass
class Rebuild:
    """The data set that the sources give: tokenized, with shards built when they are compared."""

    manifest: Manifest
    steps: Steps
    totals: Totals

    def compare(self, bucket: int, examples: Examples | None, findings: Findings) -> None:
        """Compare the rows of a bucket's shard; `examples` is None if they cannot be read."""
        record = self.steps.build_shard(bucket)
        self.totals.add(record)
        path = self.steps.context.shard_path(bucket)
        if examples is not None and rows_sha256(examples) != record.entry.rows_sha256:
            rebuilt = read_shard(path)
            if len(examples) != len(rebuilt):
                findings.add(f"{counted(len(examples), 'row')}, the sources give {len(rebuilt):,}")
            findings.note(differing_rows(examples, rebuilt), "rows other than the sources give")
        path.unlink()

    def differences(self) -> Iterator[str]:
        """Counts of the manifest that differ from the sources', once all shards are compared."""
        rebuilt = self.totals.manifest()
        for field_name in ("counts", "dropped"):
            recorded, rebuilt_counts = (getattr(m, field_name) for m in (self.manifest, rebuilt))
            for name in sorted({*recorded, *rebuilt_counts}):
                one, two = recorded.get(name, 0), rebuilt_counts.get(name, 0)
                if one != two:
                    yield f"{field_name} {name} is {one:,}, the sources give {two:,}"


@contextmanager
def rebuild(
    sources: Sequence[str], manifest: Manifest, tokenizer: Tokenizer, *, exclude: tuple[str, ...]
) -> Iterator[Rebuild]:
    """Tokenize the sources for the config of the data set, into a temporary folder (TMPDIR).

    `exclude` are the sources of --exclude, of which the manifest has only the names.

    Raises InputError if a source cannot be read.
    """
    config = replace(manifest.config, exclude=exclude, format="arrow", compression="none")
    blocks = blocks_of(sources, config)
    buckets = Buckets(
        num_train=len(manifest.of_split(TRAIN)),
        num_validation=len(manifest.of_split(VALIDATION)),
        validation=config.validation,
    )
    with scratch_context(tokenizer, config, buckets) as context:
        inputs = tuple({context.token_file(block) for block in blocks})
        context = replace(context.reading(blocks), inputs=inputs)
        steps = Steps(context)
        size = sum(block.text_bytes for block in blocks)
        with ProgressBar(desc="tokenizing", total=size, unit="B", unit_scale=True) as bar:
            for block in blocks:
                steps.tokenize_block(block)
                bar.update(block.text_bytes)
        choose(steps)
        yield Rebuild(manifest, steps, Totals(steps))
