"""The stages of a job: their elements, and the files that each one reads and writes.

    TokenizeBlock   Block  ->  TokenFile
    BuildShard      Shard  ->  ShardEntry

An element may be worked on by any process, twice, and at the same time: what is there is not made
again. A stage reads nothing but files; one of the token cache that is gone or damaged is made again
by whoever needs it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import DamagedFileError
from clozeline.pipeline.common.paths import AnyPath, make_folder
from clozeline.pipeline.curation.near.steps import (
    compare_documents,
    connect_documents,
    pair_documents,
)
from clozeline.pipeline.dataset.cache_file import read_counts
from clozeline.pipeline.dataset.manifest import MANIFEST, ShardEntry
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.finish import finish_dataset
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import TokenFile, merged_name

Made = TypeVar("Made")


class Shard(NamedTuple):
    """A shard that is to be built."""

    bucket: int
    name: str


def shards(context: JobContext) -> list[Shard]:
    """All shards of a job, in the order of their buckets."""
    buckets = range(len(context.buckets))
    return [Shard(bucket, context.shard_path(bucket).name) for bucket in buckets]


@dataclass(frozen=True)
class Stage:
    """What a job does with each of some elements, which are known before it begins."""

    label: str
    done: str  #: "blocks tokenized", for messages
    elements: Callable[[JobContext], Sequence[Any]]
    #: What is there when an element is done; known once all stages before are complete.
    files: Callable[[Steps, Any], list[AnyPath]]
    make: Callable[[Steps, Any], tuple[object, Counts]]  #: the next element, and what was counted
    size: Callable[[Any], int] = lambda element: 1  #: how much work an element is


@dataclass(frozen=True)
class CacheFile:
    """A kind of file of the token cache, one for each of some elements."""

    elements: Callable[[JobContext], Sequence[Any]]
    path: Callable[[JobContext, Any], AnyPath]
    write: Callable[[Steps, Any], object]
    has_counts: bool = False

    def stage(self, label: str, done: str) -> Stage:
        """The stage that writes these files."""
        return Stage(label, done, self.elements, self._files, self._make)

    def _files(self, steps: Steps, element: Any) -> list[AnyPath]:
        return [self.path(steps.context, element)]

    def _make(self, steps: Steps, element: Any) -> tuple[str, Counts]:
        path = self.path(steps.context, element)
        if not path.exists():
            self.write(steps, element)
        counts = next(read_counts([path])) if self.has_counts else Counts()
        return path.name, counts


#: The files that are built from other files, by their suffixes.
FILES: Final = {
    ".merged": CacheFile(
        lambda context: context.merged,
        lambda context, names: context.cache_dir / merged_name(names),
        lambda steps, names: steps.merge(names),
    ),
    ".pairs": CacheFile(
        lambda context: range(context.partitions),
        lambda context, partition: context.near.pairs_path(partition),
        lambda steps, partition: pair_documents(steps.context.near, partition),
    ),
    ".edges": CacheFile(
        lambda context: range(context.partitions),
        lambda context, partition: context.near.edges_path(partition),
        lambda steps, partition: compare_documents(steps.context.near, partition),
    ),
    ".drops": CacheFile(
        lambda context: [context.near.drops_path.name],
        lambda context, _: context.near.drops_path,
        lambda steps, _: connect_documents(steps.context.near),
        has_counts=True,
    ),
    ".mixed": CacheFile(
        lambda context: shards(context)[: context.buckets.num_train],
        lambda context, shard: context.documents_path(shard.bucket),
        lambda steps, shard: steps.count_documents(shard.bucket),
    ),
    ".mixture": CacheFile(
        lambda context: [context.mixture_path.name],
        lambda context, _: context.mixture_path,
        lambda steps, _: steps.choose_documents(),
    ),
}


def _tokenize(steps: Steps, block: Block) -> tuple[TokenFile, Counts]:
    counts = steps.tokenize_block(block)
    return steps.context.token_file(block), counts


def _build(steps: Steps, shard: Shard) -> tuple[ShardEntry, Counts]:
    record = steps.build_shard(shard.bucket)
    counts = Counts()
    counts.add(record.counts)
    counts.read["examples"] = record.entry.rows
    return record.entry, counts


def _finish(steps: Steps, name: str) -> tuple[str, Counts]:
    finish_dataset(steps)
    return name, Counts()


TOKENIZE: Final = Stage(
    "TokenizeBlock",
    "blocks tokenized",
    lambda context: context.blocks,
    lambda steps, block: steps.context.files_of(block),
    _tokenize,
    lambda block: block.text_bytes,
)
MERGE: Final = FILES[".merged"].stage("MergeBlocks", "groups of blocks merged")
NEAR_DUPLICATES: Final = (
    FILES[".pairs"].stage("PairDocuments", "partitions paired"),
    FILES[".edges"].stage("CompareDocuments", "partitions compared"),
    FILES[".drops"].stage("ConnectDocuments", "graphs of near-duplicates connected"),
)
BUDGETS: Final = (
    FILES[".mixed"].stage("CountDocuments", "buckets counted"),
    FILES[".mixture"].stage("ChooseMixture", "mixtures chosen"),
)
BUILD: Final = Stage(
    "BuildShard",
    "shards built",
    shards,
    lambda steps, shard: [steps.context.shard_path(shard.bucket), steps.record_path(shard.bucket)],
    _build,
)
FINISH: Final = Stage(
    "WriteManifest",
    "manifests written",
    lambda context: [MANIFEST],
    lambda steps, name: [steps.context.out_dir / name],
    _finish,
)


def choose(steps: Steps) -> None:
    """Choose which documents stay, in this process: to verify a text, or to estimate a job."""
    context = steps.context
    near, budgets = NEAR_DUPLICATES * context.drops_near, BUDGETS * bool(context.budgets)
    for stage in (*near, *budgets):
        for element in stage.elements(context):
            stage.make(steps, element)


def with_files(steps: Steps, make: Callable[[], Made]) -> Made:
    """What `make` gives; a file of the token cache that is gone or damaged is made again.

    Raises DamagedFileError for one that is damaged again after that.
    """
    made_again = set[str]()
    while True:
        try:
            return make()
        except DamagedFileError as error:
            if error.path.name in made_again:
                raise
            made_again.add(error.path.name)
            _make_again(steps, error.path)
            steps.cache.forget_index()


def _make_again(steps: Steps, path: AnyPath) -> None:
    """Write a file of the token cache, whatever is there; other processes may do the same."""
    context = steps.context
    make_folder(context.cache_dir)
    if kind := FILES.get(path.suffix):
        elements = kind.elements(context)
        element = next(one for one in elements if kind.path(context, one) == path)
        with_files(steps, partial(kind.write, steps, element))
    else:  # what is written of a block
        block = next(block for block in context.blocks if path in context.files_of(block))
        steps.cache_tokens(context.cache_path(block), read_block(block))
