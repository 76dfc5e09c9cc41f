"""The two large steps of a job; `graph.py` has all of them.

    tokenize_block    block   ->  token cache file
    build_shard       bucket  ->  shard, and a ShardRecord beside the token cache

A step writes its file under its final name, so a finished one is recognized by that name and not
repeated by any process.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_digest, json_values, write_json
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.exclusion import Excluded, curate, read_excluded
from clozeline.pipeline.curation.mixture import DOCUMENT, choose_mixture
from clozeline.pipeline.curation.near.steps import (
    HASH,
    NearWriter,
    Rows,
    read_rows,
    write_near_files,
    write_rows,
)
from clozeline.pipeline.curation.rules import quality_of
from clozeline.pipeline.dataset.buckets import TRAIN
from clozeline.pipeline.dataset.cache_file import read_counts
from clozeline.pipeline.dataset.manifest import MixedSource
from clozeline.pipeline.dataset.schema import Examples, example_schema
from clozeline.pipeline.dataset.shards import write_shard
from clozeline.pipeline.examples.examples import SLAB, make_examples
from clozeline.pipeline.examples.masks import MaskRules, count_in_long_words
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import HARD_WRAPPED, HOLES, Documents
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.token_cache import (
    ShardRecord,
    TokenCache,
    TokenFile,
    finished_record,
    merge_cache_files,
    write_cache_file,
    write_record,
)
from clozeline.pipeline.tokenization.documents import TokenizedDocuments, tokenize_documents
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

# Counted, but kept and not dropped.
KEPT = ("invalid_utf8", "nul", HARD_WRAPPED, HOLES)
TEXTS = 2000  #: tokenized at once


def counts_of(chunk: Documents) -> Counts:
    """What was counted while a chunk was read."""
    counts = Counts()
    for reason, number in chunk.counts.items():
        (counts.read if reason in KEPT else counts.dropped)[reason] += number
    counts.rejected += map(asdict, chunk.rejected)  # a line of rejected.jsonl each
    return counts


class Steps:
    """The steps of one job in one worker; holds the tokenizer and its memo."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.read_from(context.cache_dir, context.inputs)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The copy in the folder. Raises InputError if it is another one by now."""
        folder = self.context.tokenizer_dir
        tokenizer = load_tokenizer(folder)
        if tokenizer.digest != self.context.tokenizer_digest:
            raise InputError(f"{folder} changed while the job was running; rerun the command.")
        return tokenizer

    @cached_property
    def _splitter(self) -> SentenceSplitter:
        return SentenceSplitter(punkt_of(self.tokenizer))

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        return SentenceEncoder(self.tokenizer)

    @cached_property
    def excluded(self) -> Excluded | None:
        """The n-grams of --exclude; None without them."""
        context = self.context
        if not context.excluded:
            return None
        return read_excluded(context.excluded, context.config.exclude_ngram)

    def tokenize_block(self, block: Block) -> Counts:
        """Write the block's token cache file, unless it exists; return what was counted."""
        path = self.context.cache_path(block)
        if all(file.exists() for file in self.context.files_of(block)):
            [counts] = read_counts([path])
            return counts
        return self.cache_tokens(path, read_block(block))

    def merge(self, names: Sequence[str]) -> None:
        """Write the file that these of the token cache are merged into."""
        merge_cache_files(self.context.cache_dir, names, num_buckets=len(self.context.buckets))

    def cache_tokens(self, path: AnyPath, chunks: Iterable[Documents]) -> Counts:
        """Tokenize chunks of text into a token cache file; return what was counted.

        If near-duplicates are dropped, what their search needs is written, too.
        """
        context = self.context
        near_files: AbstractContextManager[NearWriter | None] = nullcontext()
        if context.drops_near:
            near_files = write_near_files(
                *context.near.paths(path.name),
                bands=context.near.bands,
                partitions=context.partitions,
            )
        with near_files as near:
            tokenized = self._tokenized(chunks, near)
            return write_cache_file(
                path, tokenized, buckets=context.buckets, vocab_size=context.vocab_size
            )

    def build_shard(self, bucket: int) -> ShardRecord:
        """Write the bucket's shard, and then its record, unless both exist and are whole."""
        record_path, shard_path = self.record_path(bucket), self.context.shard_path(bucket)
        if record := finished_record(record_path, shard_path):
            return record
        record = self.write_shard(shard_path, bucket)
        write_record(record_path, record)
        return record

    def _tokenized(
        self, chunks: Iterable[Documents], near: NearWriter | None
    ) -> Iterator[tuple[TokenizedDocuments, Counts]]:
        quality = quality_of(self.context.config.quality)
        for chunk in chunks:
            kept, curated = curate(chunk.texts, quality, self.excluded)
            documents, texts, counts = self._tokenize(kept)
            counts.add(curated)
            counts.add(counts_of(chunk))
            if near:
                near.add(documents.high, documents.low, texts)
            yield documents, counts

    def _tokenize(self, texts: Sequence[str]) -> tuple[TokenizedDocuments, list[str], Counts]:
        return tokenize_documents(
            texts,
            splitter=self._splitter,
            tokenizer=self._encoder,
            min_characters=self.context.config.min_characters,
        )

    def write_tokens(self, path: AnyPath, texts: Sequence[str]) -> None:
        """Tokenize texts that are curated into a file of the token cache."""
        parts = (texts[start : start + TEXTS] for start in range(0, len(texts), TEXTS))
        tokenized = ((documents, counts) for documents, _, counts in map(self._tokenize, parts))
        size = self.context.vocab_size
        write_cache_file(path, tokenized, buckets=self.context.buckets, vocab_size=size)

    def read_from(self, folder: AnyPath, files: Iterable[TokenFile]) -> None:
        """Make shards of these files from now on."""
        size = self.context.vocab_size
        buckets = len(self.context.buckets)
        self.cache = TokenCache(folder, files, num_buckets=buckets, vocab_size=size)

    def record_path(self, bucket: int) -> AnyPath:
        """The record of the bucket's shard, once all token cache files are there."""
        parts = [*self.context.parts_of_record(bucket), self.cache.inputs_of(bucket)]
        if (drops := self.drops(bucket)) is not None:
            parts.append(drops.tolist())
        parts += map(asdict, self.mixture)
        return self.context.cache_dir / f"{json_digest(parts)}.shard.json"

    @cached_property
    def mixture(self) -> list[MixedSource]:
        """The number of uses of each source with a budget, once it is chosen."""
        if not self.context.budgets:
            return []
        hint = "delete it and rerun the command"
        with json_values(self.context.mixture_path, hint, seal=True) as values:
            return [MixedSource(**source) for source in values["sources"]]

    def counts(self) -> Counts:
        """What was counted when all blocks were tokenized, and which of them are alike."""
        total = self.cache.counts()
        if self.context.drops_near:
            total.add(*read_counts([self.context.near.drops_path]))
        return total

    def count_documents(self, bucket: int) -> None:
        """Write the hash, source and tokens of each document of the bucket that may be used."""
        context = self.context
        copies, names = context.config.deduplicate == "none", list(dict(context.budgets))
        rows = self.cache.mixed(bucket, names, copies=copies, drops=self.drops(bucket))
        write_rows(context.documents_path(bucket), iter([(0, rows)]), partitions=1)

    def choose_documents(self) -> None:
        """Write how often documents are used, so that each source gives its tokens.

        Raises InputError for a source of which no text is left.
        """
        context = self.context
        paths = [context.documents_path(bucket) for bucket in range(context.buckets.num_train)]
        documents = np.concatenate([*read_rows(paths, 0, DOCUMENT)])  # 16 bytes each
        sources = choose_mixture(dict(context.budgets), documents)
        values = {"sources": [asdict(source) for source in sources]}
        write_json(context.mixture_path, values, seal=True)

    def drops(self, bucket: int) -> Rows | None:
        """The hashes of the bucket's near-duplicates, sorted; None if they stay."""
        if not self.context.drops_near:
            return None
        [rows] = read_rows([self.context.near.drops_path], bucket, HASH)
        return rows

    def make_rows(self, bucket: int) -> tuple[Examples, Counter[str], int]:
        """The rows of the bucket's shard, what was dropped, and the highest repeat."""
        config, drops = self.context.config, self.drops(bucket)
        split, index = self.context.buckets.split_of(bucket)
        every = partial(
            self.cache.documents,
            bucket,
            copies=config.deduplicate == "none",
            drops=drops,
            mixture=self.mixture,
        )
        documents, duplicates, unused, repeat = every()
        repeat = repeat if split == TRAIN else 1
        examples, dropped = make_examples(
            documents,
            repeated=(every(above=n).documents for n in range(1, repeat)),
            split=split,
            shard=index,
            config=config,
            tokenizer=self.tokenizer,
        )
        dropped["duplicate_document"] += duplicates
        dropped["beyond_budget"] += unused
        dropped["near_duplicate"] += 0 if drops is None else len(drops)
        return examples, dropped, repeat

    def write_shard(self, path: AnyPath, bucket: int) -> ShardRecord:
        config, tokenizer = self.context.config, self.tokenizer
        split, _ = self.context.buckets.split_of(bucket)
        examples, dropped, repeat = self.make_rows(bucket)
        entry = write_shard(
            path,
            examples,
            example_schema(tokenizer.vocab_size, tokenizer.digest, packed=config.is_packed),
            format=config.format,
            compression=None if config.compression == "none" else config.compression,
        )
        empty = np.zeros(0, np.int64)
        tokens = count_tokens(examples, tokenizer) if split == TRAIN else empty
        counts = Counts(dropped=dropped)
        if unmasked := int((examples.masked_lm_positions.lengths == 0).sum()):
            counts.read["without_masks"] = unmasked
        if config.masking == "whole-words" and split == TRAIN:
            rules = MaskRules.of(config, tokenizer)
            if number := count_in_long_words(examples, rules):
                counts.read["in_long_words"] = number
        return ShardRecord(bucket, entry, counts, tokens, repeat)


def count_tokens(examples: Examples, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Occurrences of each token before masking, [V]; special tokens count 0."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for start in range(0, len(examples), SLAB):  # bincount takes 8 bytes a token
        rows = examples.slice(start, start + SLAB)
        counts += np.bincount(rows.unmasked().input_ids.values, minlength=len(counts))
    counts[tokenizer.is_special] = 0
    return counts


def punkt_of(tokenizer: Tokenizer) -> PunktData:
    """The tokenizer's Punkt parameters. Raises InputError where they are missing or unusable."""
    if tokenizer.punkt is None:
        raise InputError(
            "the tokenizer has no Punkt parameters; make it with `clozeline tokenizer`."
        )
    return PunktData.from_json(tokenizer.punkt)
