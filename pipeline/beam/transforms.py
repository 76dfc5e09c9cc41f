"""ReadDocuments, WriteDataSet and MakeExamples; `clozeline.beam` has them under these names.

    documents  ->  by the shard of their hash  ->  sentences, tokens, pairs, masks  ->  shards

The engine groups the text of each shard, so nothing is shared but the folder of the data set. The
order of the documents, their bundles and what is done twice change nothing. Beam's in-process
runner holds all text in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import PBegin, PCollection

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import file_sha256
from clozeline.pipeline.common.paths import GivenPath, each_given, is_file, path_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.pipeline.dataset.shards import record_batches
from clozeline.pipeline.job.out_folder import CACHE, check_folder
from clozeline.pipeline.job.texts import KeyByShard, ReadBlock, WritesShards, WriteTexts
from clozeline.pipeline.sources.block import BLOCK_BYTES
from clozeline.pipeline.steps.context import blocks_of, new_context
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer


class ReadDocuments(beam.PTransform[Any, Any]):
    """Sources -> their documents, each with `text` (and `repeat`, of a source with that option).

    Args:
        sources: One or several, as `clozeline shards` takes them: paths, globs, URLs, hf://,
            sample:. They are listed when the graph is built, and read by the workers.
        text_columns: Columns or JSON keys that are joined to the text.
        block_bytes: Bytes of text that a worker reads at a time.

    Raises InputError for a source that cannot be read. Documents that cannot be read are left out.
    """

    def __init__(
        self,
        sources: GivenPath | Iterable[GivenPath],
        *,
        text_columns: Sequence[str] = DataConfig.text_columns,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__()
        config = DataConfig(text_columns=tuple(text_columns))
        self.blocks = blocks_of(list(each_given(sources)), config, block_bytes=block_bytes)
        self.read = ReadBlock(with_counts=False)
        for block in self.blocks:
            if block.share:
                raise InputError(f"ReadDocuments: {block.share}: tokens= needs `clozeline shards`.")

    def expand(self, root: PBegin) -> PCollection[Any]:
        blocks = root | "Blocks" >> beam.Create(self.blocks) | beam.Reshuffle()
        documents: PCollection[Any] = blocks | "Read" >> beam.ParDo(self.read)
        return documents


class OfDocuments(beam.PTransform[Any, Any]):
    """What the transforms that make shards of documents have in common."""

    def __init__(
        self,
        out: GivenPath,
        *,
        tokenizer: GivenPath,
        num_shards: int | None,
        config: DataConfig | None,
    ) -> None:
        super().__init__()
        config = config or DataConfig()
        config = replace(config, num_shards=num_shards or config.num_shards)
        name = type(self).__name__
        if config.num_shards is None:
            raise InputError(
                f"{name}: give num_shards=N; the size of the text is not known before."
            )
        if config.deduplicate == "near":
            raise InputError(f"{name}: deduplicate='near' needs `clozeline shards`.")
        folder = path_of(out).absolute()
        try:
            self.context = new_context(
                load_tokenizer(tokenizer),
                config,
                out_dir=folder,
                cache_dir=folder / CACHE,
                has_cache=False,
                given_tokenizer=path_of(tokenizer).absolute(),
                buckets=Buckets.plan(config, 0),
            )
        except InputError as error:
            raise InputError(f"{name}: {error}") from error

    def _check(self, documents: PCollection[Any]) -> None:
        if not documents.is_bounded:
            raise InputError(f"{type(self).__name__}: the PCollection is unbounded; give a batch.")


class WriteDataSet(OfDocuments):
    """Documents -> a data set in the folder `out`; yields its manifest.

    Documents are texts, dicts with "text", or what `ReadDocuments` yields. With the sources of
    `clozeline shards --num-shards N`, the shards have the same bytes.

    Args:
        out: A folder or URL that all workers can write to. One that holds a data set is refused.
        tokenizer: A folder or URL that all workers can read.
        num_shards: Number of training shards; or that of `config`.
        config: What decides the examples.
        overwrite: Replace the data set in `out`, once all text is read.
    """

    def __init__(
        self,
        out: GivenPath,
        *,
        tokenizer: GivenPath,
        num_shards: int | None = None,
        config: DataConfig | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__(out, tokenizer=tokenizer, num_shards=num_shards, config=config)
        check_folder(self.context)
        manifest = self.context.out_dir / MANIFEST
        if is_file(manifest) and not overwrite:
            raise InputError(
                f"WriteDataSet: {out} holds a data set; give another folder, or overwrite=True."
            )
        replaced = file_sha256(manifest) if is_file(manifest) else ""
        self.context = replace(self.context, replaced=replaced)

    def expand(self, documents: PCollection[Any]) -> PCollection[Any]:
        self._check(documents)
        manifest: PCollection[Any] = documents | WriteTexts(self.context)
        return manifest


class MakeExamples(OfDocuments):
    """Documents -> (name of the shard, RecordBatch of its examples), for a sink of your own.

    Batches have 1,024 rows, in the order and with the schema of the shard. The arguments are those
    of `WriteDataSet`; nothing is written.
    """

    def __init__(
        self,
        *,
        tokenizer: GivenPath,
        num_shards: int | None = None,
        config: DataConfig | None = None,
    ) -> None:
        super().__init__(".", tokenizer=tokenizer, num_shards=num_shards, config=config)

    def expand(self, documents: PCollection[Any]) -> PCollection[Any]:
        self._check(documents)
        keyed = documents | "KeyByShard" >> beam.ParDo(KeyByShard(self.context))
        batches: PCollection[Any] = (
            keyed
            | "AllTexts" >> beam.GroupByKey()
            | "Examples" >> beam.ParDo(BatchesOfTexts(self.context))
        )
        return batches


class BatchesOfTexts(WritesShards):
    """(shard, its texts) -> (its name, RecordBatch)."""

    name = "MakeExamples"

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[str, pa.RecordBatch]]:
        shard, context = element[0], self.context
        schema = example_schema(
            context.vocab_size, context.tokenizer_digest, packed=context.config.is_packed
        )
        with self.tokens_of(element[1]):
            examples, _, _ = self.steps.make_rows(shard)
        for batch in record_batches(examples, schema):
            yield context.shard_path(shard).name, batch
