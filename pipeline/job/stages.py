"""The steps of the graph: an element to the file that it becomes.

    TokenizeBlock   Block  ->  TokenFile
    BuildShard      Shard  ->  ShardEntry

An element may be worked on by any process, twice, and at the same time: what is there is not made
again. A step reads nothing but files; one of the token cache that is gone is made again.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import apache_beam as beam
from apache_beam.metrics.metric import Metrics

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.memory import disable_malloc_trim
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.near.steps import (
    compare_documents,
    connect_documents,
    pair_documents,
)
from clozeline.pipeline.dataset.cache_file import read_counts
from clozeline.pipeline.dataset.manifest import MANIFEST, ShardEntry
from clozeline.pipeline.job.out_folder import prepare_folders
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.finish import check_examples, finish_dataset
from clozeline.pipeline.steps.lost_files import with_files
from clozeline.pipeline.steps.mixture import choose_documents, documents_path, mixture_path
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import TokenFile, merged_name

NAMESPACE: Final = "clozeline"  #: of the counters
EMPTY: Final = None  #: the element that stands for none


class Shard(NamedTuple):
    """A shard that is to be built."""

    bucket: int
    name: str


def shards(context: JobContext) -> list[Shard]:
    """All shards of a job, in the order of their buckets."""
    return [
        Shard(bucket, context.shard_path(bucket).name) for bucket in range(len(context.buckets))
    ]


class OfJob(beam.DoFn):
    """Works with the steps of a job, of which a process has as few as it can: they are large."""

    _idle: ClassVar[list[Steps]] = []
    _lock: ClassVar = threading.Lock()  # an engine may have threads

    def __init__(self, context: JobContext) -> None:
        self.context = context

    def setup(self) -> None:
        disable_malloc_trim()

    def start_bundle(self) -> None:
        with OfJob._lock:
            idle = [steps for steps in OfJob._idle if steps.context == self.context]
            self.steps = idle.pop() if idle else Steps(self.context)
            OfJob._idle[:] = idle

    def finish_bundle(self) -> None:
        with OfJob._lock:
            OfJob._idle.append(self.steps)


class Step(OfJob):
    """An element -> its file, which is written unless it is there."""

    done: str  #: "blocks tokenized"

    @property
    def label(self) -> str:
        return type(self).__name__

    def elements(self) -> Sequence[Any]:
        """All of the job."""
        raise NotImplementedError

    def size(self, element: Any) -> int:
        """How much work an element is, compared with others."""
        return 1

    def files(self, steps: Steps, element: Any) -> list[AnyPath]:
        """What is there when the element is done; known once all stages before are complete."""
        raise NotImplementedError

    def make(self, element: Any) -> tuple[object, Counts]:
        """The next element, and what was counted."""
        raise NotImplementedError

    def process(self, element: Any) -> Iterator[object]:
        if element is EMPTY:
            yield EMPTY
            return
        made, counts = with_files(self.steps, lambda: self.make(element))
        for name, number in counted(counts).items():
            Metrics.counter(NAMESPACE, name).inc(number)
        yield made


def counted(counts: Counts) -> Counter[str]:
    """The counters: what the manifest has in `counts`, and in `dropped` as "dropped_..."."""
    dropped = {f"dropped_{reason}": number for reason, number in counts.dropped.items()}
    return +Counter({**counts.read, **dropped, "rejected": len(counts.rejected)})


class ReadExcluded(Step):
    """The texts of --exclude, once for all workers."""

    done = "sets of excluded texts read"

    def elements(self) -> Sequence[str]:
        return [name for name, _ in self.context.excluded][:1]

    def files(self, steps: Steps, element: str) -> list[AnyPath]:
        return [self.context.excluded_path]

    def make(self, element: str) -> tuple[str, Counts]:
        _ = self.steps.excluded
        [counts] = read_counts([self.context.excluded_path])
        return self.context.excluded_path.name, counts


class TokenizeBlock(Step):
    """Block -> TokenFile."""

    done = "blocks tokenized"

    def elements(self) -> Sequence[Block]:
        return self.context.blocks

    def size(self, element: Block) -> int:
        return element.text_bytes

    def files(self, steps: Steps, element: Block) -> list[AnyPath]:
        return self.context.files_of(element)

    def make(self, element: Block) -> tuple[TokenFile, Counts]:
        counts = self.steps.tokenize_block(element)
        return self.context.token_file(element), counts


class FileStep(Step):
    """An element -> the name of the one file that is written for it."""

    def path(self, element: Any) -> AnyPath:
        raise NotImplementedError

    def write(self, element: Any) -> object:
        raise NotImplementedError

    def files(self, steps: Steps, element: Any) -> list[AnyPath]:
        return [self.path(element)]

    def make(self, element: Any) -> tuple[str, Counts]:
        path = self.path(element)
        if not path.exists():
            self.write(element)
        return path.name, Counts()


class MergeBlocks(FileStep):
    """The names of token files -> the file that they are merged into."""

    done = "groups of blocks merged"

    def elements(self) -> Sequence[Sequence[str]]:
        return self.context.merged

    def path(self, element: Sequence[str]) -> AnyPath:
        return self.context.cache_dir / merged_name(element)

    def write(self, element: Sequence[str]) -> None:
        self.steps.merge(element)


class PairDocuments(FileStep):
    """A partition of the band keys -> its pairs."""

    done = "partitions paired"

    def elements(self) -> Sequence[int]:
        return range(self.context.partitions)

    def path(self, element: int) -> AnyPath:
        return self.context.near.pairs_path(element)

    def write(self, element: int) -> None:
        pair_documents(self.context.near, element)


class CompareDocuments(PairDocuments):
    """A partition of the pairs -> its edges."""

    done = "partitions compared"

    def path(self, element: int) -> AnyPath:
        return self.context.near.edges_path(element)

    def write(self, element: int) -> None:
        compare_documents(self.context.near, element)


class ConnectDocuments(FileStep):
    """All edges -> the documents of each shard that are dropped."""

    done = "graphs of near-duplicates connected"

    def elements(self) -> Sequence[str]:
        return [self.context.near.drops_path.name]

    def path(self, element: str) -> AnyPath:
        return self.context.near.drops_path

    def write(self, element: str) -> None:
        connect_documents(self.context.near)

    def make(self, element: str) -> tuple[str, Counts]:
        name, _ = super().make(element)
        [counts] = read_counts([self.context.near.drops_path])
        return name, counts


class CountDocuments(FileStep):
    """Shard -> its documents that may be used."""

    done = "buckets counted"

    def elements(self) -> Sequence[Shard]:
        return shards(self.context)[: self.context.buckets.num_train]

    def path(self, element: Shard) -> AnyPath:
        return documents_path(self.context, element.bucket)

    def write(self, element: Shard) -> None:
        self.steps.count_documents(element.bucket)


class ChooseMixture(FileStep):
    """The documents of all shards -> the use of each source's."""

    done = "mixtures chosen"

    def elements(self) -> Sequence[str]:
        return [mixture_path(self.context).name]

    def path(self, element: str) -> AnyPath:
        return mixture_path(self.context)

    def write(self, element: str) -> None:
        choose_documents(self.context)


class ReplaceDataSet(Step):
    """All text is read: the data set that is replaced goes, if the new one has examples."""

    done = "data sets removed"

    def elements(self) -> Sequence[str]:
        return [str(self.context.out_dir)]

    def files(self, steps: Steps, element: str) -> list[AnyPath]:
        return []

    def make(self, element: str) -> tuple[str, Counts]:
        replace_data_set(self.steps)
        return element, Counts()


class BuildShard(Step):
    """Shard -> ShardEntry."""

    done = "shards built"

    def elements(self) -> Sequence[Shard]:
        return shards(self.context)

    def files(self, steps: Steps, element: Shard) -> list[AnyPath]:
        return [steps.context.shard_path(element.bucket), steps.record_path(element.bucket)]

    def make(self, element: Shard) -> tuple[ShardEntry, Counts]:
        record = self.steps.build_shard(element.bucket)
        counts = Counts()
        counts.add(record.counts)
        counts.read["examples"] = record.entry.rows
        return record.entry, counts


class WriteManifest(Step):
    """All shards -> the manifest."""

    done = "manifests written"

    def elements(self) -> Sequence[str]:
        return [MANIFEST]

    def files(self, steps: Steps, element: str) -> list[AnyPath]:
        return [self.context.out_dir / element]

    def make(self, element: str) -> tuple[str, Counts]:
        finish_dataset(self.steps)
        return element, Counts()


def replace_data_set(steps: Steps) -> None:
    """Remove the data set that is replaced. Raises as `check_examples`: then it stays."""
    check_examples(steps)
    prepare_folders(steps.context, steps.tokenizer)
