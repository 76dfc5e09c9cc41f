"""What every worker of a job knows: folders, config, and the name of every file."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import json_digest
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.mixture import budgets_of
from clozeline.pipeline.curation.near.search import NEAR_VERSION, NearSearch
from clozeline.pipeline.curation.rules import quality_of
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.cache_file import digest_of
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.sources.block import BLOCK_BYTES, Block
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.sources.source_query import portable_names
from clozeline.pipeline.steps.token_cache import TokenFile, group_files
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

# Increase it when the same documents would give another shard (pairs, masks, the shard's layout) or
# another record of it.
EXAMPLES_VERSION = 6
NEW_TOKENIZER = ".tokenizer"  #: in the folder of a data set that is being replaced


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What every worker needs to know; plain values, so that it can be sent to any worker."""

    out_dir: AnyPath
    cache_dir: AnyPath
    config: DataConfig
    buckets: Buckets
    tokenizer_digest: str
    vocab_size: int
    sources_digest: str = ""
    blocks: tuple[Block, ...] = ()  #: what is tokenized; a block that is given twice is here once
    tokenized: tuple[str, ...] = ()  #: the names of their files in the token cache
    merged: tuple[tuple[str, ...], ...] = ()  #: of these, groups that are merged into one file each
    inputs: tuple[TokenFile, ...] = ()  #: the files of the token cache that shards read
    excluded: tuple[tuple[str, tuple[Block, ...]], ...] = ()  #: sources of --exclude
    partitions: int = 1  #: of the search for near-duplicates
    budgets: tuple[tuple[str, int], ...] = ()  #: tokens of the sources that have a budget, by name
    has_cache: bool = True  #: of tokens; else the records of shards are all that is there
    replaced: str = ""  #: sha256 of the manifest that goes before a shard is written, of texts
    given_tokenizer: AnyPath | None = None  #: where workers find it, if not in the data set
    replaces: bool = False  #: whether another data set stays in `out_dir` until all text is read

    def reading(self, blocks: Sequence[Block]) -> Self:
        """The context of a job over these blocks. Raises InputError for a wrong mixture."""
        files = {self.token_file(block): block for block in blocks}
        groups = group_files(files)
        return replace(
            self,
            budgets=tuple(budgets_of(blocks).items()),
            blocks=tuple(files.values()),
            tokenized=tuple(sorted({file.name for file in files})),
            merged=tuple(tuple(names) for names in groups.values() if len(names) > 1),
            inputs=tuple(groups),
        )

    @property
    def shard_names(self) -> list[str]:
        """Sorted."""
        return sorted(self.shard_path(bucket).name for bucket in range(len(self.buckets)))

    @property
    def tokenizer_dir(self) -> AnyPath:
        """The tokenizer of the job: that of the data set, or beside that of the one it replaces."""
        if self.given_tokenizer:
            return self.given_tokenizer
        return self.out_dir / (NEW_TOKENIZER if self.replaces else TOKENIZER)

    def cache_path(self, block: Block) -> AnyPath:
        """The block's token cache file, once it is tokenized."""
        thresholds = quality_of(self.config.quality).thresholds
        parts = [
            block.identity,
            self.tokenizer_digest,
            self.buckets,
            self.config.min_characters,
            self.config.max_document_bytes,
            block.text_columns,
            *([f"quality {thresholds}"] if thresholds else []),
            *([self._excluded_digest] if self.excluded else []),
        ]
        return self.cache_dir / f"{digest_of(parts)}.tokens"

    @cached_property
    def _excluded_digest(self) -> str:
        """A digest of the texts of --exclude, and how they are compared."""
        parts = [
            (number, block.identity, block.text_columns, block.max_document_bytes)
            for number, (_, blocks) in enumerate(self.excluded)
            for block in blocks
        ]
        return digest_of([NEAR_VERSION, self.config.exclude_ngram, *parts])

    def token_file(self, block: Block) -> TokenFile:
        """The block's token cache file, as an input of shards."""
        return TokenFile(self.cache_path(block).name, block.repeat, block.share)

    @property
    def drops_near(self) -> bool:
        return self.config.deduplicate == "near"

    @cached_property
    def near(self) -> NearSearch:
        """The search for near-duplicates, where `drops_near`."""
        return NearSearch(
            folder=self.cache_dir,
            tokenized=self.tokenized,
            similarity=self.config.similarity,
            partitions=self.partitions,
            buckets=self.buckets,
        )

    def documents_path(self, bucket: int) -> AnyPath:
        """The documents of a bucket that a mixture may use, once they are counted."""
        copies = self.near.drops_path.name if self.drops_near else self.config.deduplicate
        parts = [sorted(self.inputs), self.buckets, list(dict(self.budgets)), copies, bucket]
        return self.cache_dir / f"{digest_of(parts)}.mixed"

    @property
    def mixture_path(self) -> AnyPath:
        """The number of uses of documents, once it is chosen."""
        parts = [self.documents_path(0).name, self.budgets]
        return self.cache_dir / f"{digest_of(parts)}.mixture"

    def files_of(self, block: Block) -> list[AnyPath]:
        """A tokenized block, and what the search for near-duplicates keeps beside it."""
        path = self.cache_path(block)
        return [path, *(self.near.paths(path.name) if self.drops_near else ())]

    def shard_path(self, bucket: int) -> AnyPath:
        """The bucket's shard, once it is built."""
        return self.out_dir / self.buckets.shard_name(bucket, self.config.format)

    def parts_of_record(self, bucket: int) -> list[object]:
        """What any record of a shard depends on, beside its documents."""
        config = self.config.to_dict()
        del config["max_rejected"]  # raising it after a failed job rebuilds no shard
        return [EXAMPLES_VERSION, config, self.tokenizer_digest, asdict(self.buckets), bucket]


def blocks_of(
    sources: Sequence[str], config: DataConfig, *, block_bytes: int = BLOCK_BYTES
) -> list[Block]:
    """The blocks of sources, to be read as the config says. Raises InputError."""
    return list_blocks(
        sources,
        block_bytes=block_bytes,
        text_columns=config.text_columns,
        max_document_bytes=config.max_document_bytes,
    )


def excluded_blocks(config: DataConfig) -> tuple[tuple[str, tuple[Block, ...]], ...]:
    """The blocks of each source of --exclude. Raises InputError for one that cannot be read."""
    try:
        return tuple((name, tuple(blocks_of([name], config))) for name in config.exclude)
    except InputError as error:  # the data set may name it relative to another folder
        raise InputError(f"--exclude: {error}") from error


def portable_config(config: DataConfig) -> DataConfig:
    """The config as a manifest has it: the same for the same job in another folder."""
    return replace(config, exclude=tuple(portable_names(config.exclude)))


def new_context(tokenizer: Tokenizer, config: DataConfig, **values: Any) -> JobContext:
    """The context of a job that begins. Raises InputError for options that cannot be used."""
    _check_config(config, tokenizer)
    quality_of(config.quality)  # raises for an unknown set of rules
    context = _context(tokenizer, config, **values)
    _check_excluded(context.excluded)
    return context


def _context(tokenizer: Tokenizer, config: DataConfig, **values: Any) -> JobContext:
    return JobContext(
        config=config,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        excluded=excluded_blocks(config),
        **values,
    )


def _check_config(config: DataConfig, tokenizer: Tokenizer) -> None:
    """Raises InputError for an option that does nothing, or not with this tokenizer."""
    if config.short_seq_prob != DataConfig.short_seq_prob and not config.has_short:
        raise InputError(
            f"--short-seq-prob does nothing with --pairs {config.pairs}; leave it out, or use "
            "--pairs segments or --pairs order."
        )
    if config.masking == "whole-words" and not tokenizer.knows_words:
        raise InputError(
            "--masking whole-words: the tokens of this tokenizer do not say where a word begins; "
            "use --masking tokens."
        )


def _check_excluded(excluded: Iterable[tuple[str, Sequence[Block]]]) -> None:
    """Raises InputError where a source of --exclude has an option that is for training text."""
    for name, blocks in excluded:
        for block in blocks:
            given = "repeat" if block.repeat > 1 else "tokens"
            if block.repeat > 1 or block.tokens:
                raise InputError(
                    f"--exclude {name}: {given}= is for text to train on and does nothing here; "
                    "leave it out (limit=N takes the first N documents)."
                )


@contextmanager
def scratch_context(
    tokenizer: Tokenizer, config: DataConfig, buckets: Buckets
) -> Iterator[JobContext]:
    """The context of a job in a temporary folder (TMPDIR), which is removed at the end.

    Options are not checked: a data set to verify may be of a time when some were ignored.
    """
    with tempfile.TemporaryDirectory(prefix="clozeline-") as scratch:
        folder = Path(scratch)
        tokenizer.save(folder / TOKENIZER)
        yield _context(tokenizer, config, out_dir=folder, cache_dir=folder, buckets=buckets)


def job_digest(context: JobContext) -> str:
    """A digest of all that decides the files of a job's tasks: two jobs of one digest are one."""
    config = context.config.to_dict()
    del config["max_rejected"]  # may be raised after a failed job, which then continues
    inputs = sorted(context.inputs)
    return json_digest([config, context.tokenizer_digest, context.sources_digest, inputs])


def sources_digest(blocks: Sequence[Block], excluded: Iterable[Sequence[Block]] = ()) -> str:
    """A digest of the files that the blocks are cut from, whatever their order and the block size.

    A local file counts by name, size and modification time, in whatever folder; a URL as a whole.
    The blocks of each source of --exclude count, too.
    """
    if others := [sources_digest(part) for part in excluded]:
        return json_digest([sources_digest(blocks), others])
    files: dict[tuple[str, ...], list[Block]] = {}
    for block in blocks:
        key = (block.path, block.format, block.version, block.query)
        files.setdefault(key, []).append(block)
    files_read = [  # a generated source has parts, which begin somewhere
        [
            Path(path).name if Path(path).is_absolute() else path,
            *rest,
            min(b.start for b in parts),
            sum(b.text_bytes for b in parts),
        ]
        for (path, *rest), parts in files.items()
    ]
    return json_digest(sorted(files_read))
