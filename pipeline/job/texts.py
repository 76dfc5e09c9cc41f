"""The graph without a token cache: documents are grouped as text, by the engine's own shuffle.

    ReadBlock     Block               ->  Document
    KeyByShard    Document            ->  (shard, text)      curated; what is dropped is counted
    ShardOfTexts  (shard, texts)      ->  (0, ShardFile)     tokens | pairs | masks | write
    FinishTexts   (0, all ShardFiles) ->  the manifest

Nothing is shared but the folder of the data set. A step that is done again does the same again, and
a shard that is there is not made again: its record is named by the hashes of its documents.
"""

import hashlib
import shutil
import struct
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection

from clozeline.pipeline.common.counts import Counts, disable_malloc_trim
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_digest
from clozeline.pipeline.common.paths import make_folder
from clozeline.pipeline.curation.exclusion import curate
from clozeline.pipeline.curation.rules import quality_of
from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.dataset.manifest import Manifest
from clozeline.pipeline.job.out_folder import is_begun, prepare_folders, remove_leftovers
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.finish import finish_dataset
from clozeline.pipeline.steps.steps import Steps, counts_of
from clozeline.pipeline.steps.token_cache import (
    ShardRecord,
    TokenFile,
    finished_record,
    write_record,
)
from clozeline.pipeline.tokenization.documents import clean_texts

NAMESPACE: Final = "clozeline"  #: of the counters
COUNTS: Final = 0  #: in the place of a document's `repeat`: what follows are counts
REPEAT: Final = struct.Struct("<H")


def counted(counts: Counts) -> Counter[str]:
    """The counters: what the manifest has in `counts`, and in `dropped` as "dropped_..."."""
    dropped = {f"dropped_{reason}": number for reason, number in counts.dropped.items()}
    return +Counter({**counts.read, **dropped, "rejected": len(counts.rejected)})


class Document(NamedTuple):
    """What `ReadDocuments` yields."""

    text: str
    repeat: int = 1  #: makes this many times as many examples
    counts: str = ""  #: of reading, as JSON; then there is no text


class ReadBlock(beam.DoFn):
    """Block -> its Documents, and if that is wanted what was counted."""

    def __init__(self, *, with_counts: bool) -> None:
        self.with_counts = with_counts

    def process(self, block: Block) -> Iterator[Document]:
        for chunk in read_block(block):
            counts = counts_of(chunk)
            for text in chunk.texts:
                yield Document(text, block.repeat)
            if self.with_counts and (counts.read or counts.dropped or counts.rejected):
                yield Document("", counts=counts.to_json())


class OnTexts(beam.DoFn):
    """A DoFn with the steps of a job and a scratch folder."""

    name = "WriteDataSet"  #: of the transform, in messages

    def __init__(self, context: JobContext) -> None:
        self.context = context

    def setup(self) -> None:
        disable_malloc_trim()
        self.scratch = Path(tempfile.mkdtemp(prefix="clozeline-"))
        weakref.finalize(self, shutil.rmtree, self.scratch, ignore_errors=True)
        self.steps = Steps(replace(self.context, cache_dir=self.scratch))
        try:
            _ = self.steps.tokenizer
        except InputError as error:
            raise InputError(
                f"{self.name}: {error} Workers must see it: give a folder that all of them share."
            ) from error

    def teardown(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)


class KeyByShard(OnTexts):
    """A document -> (its shard, its text), curated; what was dropped, as counts, to shard 0."""

    def process(self, element: Any) -> Iterator[tuple[int, bytes]]:
        if isinstance(element, Document) and element.counts:
            yield 0, REPEAT.pack(COUNTS) + element.counts.encode()
            return
        chunk = Documents()
        chunk.keep(self._text_of(element))
        quality = quality_of(self.context.config.quality)
        texts, counts = curate(chunk.texts, quality, self.steps.excluded)
        counts.add(counts_of(chunk))
        for text in texts:
            repeat = element.repeat if isinstance(element, Document) else 1
            yield self._shard_of(text), REPEAT.pack(repeat) + text.encode()
        if counts != Counts():
            yield 0, REPEAT.pack(COUNTS) + counts.to_json().encode()

    def _shard_of(self, text: str) -> int:
        """The first shard for a text that is too short: it counts and drops it."""
        clean, *_ = clean_texts([text], self.context.config.min_characters)
        return int(self.context.buckets.of(*hash_documents(clean))[0]) if clean else 0

    def _text_of(self, element: Any) -> str:
        text = element.text if isinstance(element, Document) else element
        if isinstance(element, Mapping):
            text = element.get("text")
        if not isinstance(text, str):
            raise InputError(
                f"{self.name}: an element is {type(element).__name__}; give texts, dicts with "
                '"text" or what ReadDocuments yields.'
            )
        return text


class ShardFile(NamedTuple):
    """A shard that is written, and where its record is."""

    shard: int
    record: str
    documents: int  #: with copies
    sum_of_hashes: int


class WritesShards(OnTexts):
    """Makes a shard of texts, unless it is there."""

    def make(self, shard: int, values: Sequence[bytes]) -> tuple[ShardFile, ShardRecord]:
        """Write a shard and its record, unless they are there."""
        context = self.context
        hashes = sorted(hashlib.blake2b(value, digest_size=8).digest() for value in values)
        texts = [value for value in values if REPEAT.unpack_from(value)[0] != COUNTS]
        content = hashlib.blake2b(b"".join(hashes)).hexdigest()
        name = f"{json_digest([*context.parts_of_record(shard), content])}.shard.json"
        record_path, shard_path = context.cache_dir / name, context.shard_path(shard)
        record = finished_record(record_path, shard_path)
        if not record:
            if not is_begun(context):
                prepare_folders(context, self.steps.tokenizer)
            with self.tokens_of(values) as dropped:
                record = self.steps.write_shard(shard_path, shard)
                record.counts.add(self.steps.cache.counts())
            record.counts.add(dropped)
            make_folder(context.cache_dir)
            write_record(record_path, record)
        own = (hashlib.blake2b(value, digest_size=8).digest() for value in texts)
        total = sum(int.from_bytes(digest) for digest in own) % (1 << 64)
        return ShardFile(shard, name, len(texts), total), record

    @contextmanager
    def tokens_of(self, values: Iterable[bytes]) -> Iterator[Counts]:
        """The steps make shards of these texts while the block runs; yields what was dropped."""
        dropped, texts = Counts(), dict[int, list[str]]()
        for value in values:
            [repeat] = REPEAT.unpack_from(value)
            if repeat == COUNTS:
                dropped.add(Counts.from_json(value[REPEAT.size :]))
            else:
                texts.setdefault(repeat, []).append(value[REPEAT.size :].decode())
        with tempfile.TemporaryDirectory(prefix="clozeline-") as scratch:
            files = [TokenFile(f"{repeat}.tokens", repeat) for repeat in texts]
            for file in files:
                self.steps.write_tokens(Path(scratch, file.name), texts[file.repeat])
            self.steps.read_from(Path(scratch), files)
            yield dropped


class ShardOfTexts(WritesShards):
    """(shard, its texts) -> (0, ShardFile)."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, ShardFile]]:
        shard, values = element[0], list(element[1])
        made, record = self.make(shard, values)
        for name, number in counted(record.counts).items():
            Metrics.counter(NAMESPACE, name).inc(number)
        Metrics.counter(NAMESPACE, "examples").inc(record.entry.rows)
        yield 0, made


class FinishTexts(WritesShards):
    """(0, all ShardFiles) -> the manifest; shards without a document are made here."""

    def process(self, element: tuple[int, Iterable[ShardFile | None]]) -> Iterator[Manifest]:
        made = {file.shard: file for file in element[1] if file}
        if not made:
            raise InputError(f"{self.name}: there is no document; give text that is not empty.")
        for shard in set(range(len(self.context.buckets))) - made.keys():
            made[shard], _ = self.make(shard, [])
        files = [made[shard] for shard in sorted(made)]
        digest = self.context.sources_digest or json_digest(
            [sum(f.documents for f in files), sum(f.sum_of_hashes for f in files) % (1 << 64)]
        )
        self.steps.read_from(self.scratch, [])
        records = [self.context.cache_dir / file.record for file in files]
        self.steps.context = replace(self.steps.context, sources_digest=digest)
        yield finish_dataset(self.steps, records)
        remove_leftovers(self.context, keep_cache=False)


class WriteTexts(beam.PTransform[Any, Any]):
    """Documents -> the manifest of the data set that they make."""

    def __init__(self, context: JobContext) -> None:
        super().__init__()
        self.context = context

    def expand(self, documents: Any) -> PCollection[Any]:
        keyed = documents | "KeyByShard" >> beam.ParDo(KeyByShard(self.context))
        files = (
            keyed
            | "AllTexts" >> beam.GroupByKey()
            | "Examples" >> beam.ParDo(ShardOfTexts(self.context))
        )
        # Without a document the last step would not run, and nothing would say so.
        nothing = documents.pipeline | "Nothing" >> beam.Create([(0, None)])
        manifest: PCollection[Any] = (
            (files, nothing)
            | "OrNothing" >> beam.Flatten()
            | "AllShards" >> beam.GroupByKey()
            | "Manifest" >> beam.ParDo(FinishTexts(self.context))
        )
        return manifest
