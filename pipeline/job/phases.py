"""The phases of a job, in their order: the one list that workers, tasks and Beam work through.

The items of a phase may be done in any order, by any process, twice, and at the same time. The next
phase begins when all files of this one are there, and an item reads nothing but files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clozeline.pipeline.common.malloc import disable_malloc_trim
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.job.context import JobContext
from clozeline.pipeline.job.finish import check_examples, finish_dataset
from clozeline.pipeline.job.mixture import choose_documents, documents_path, mixture_path
from clozeline.pipeline.job.near_steps import (
    compare_documents,
    connect_documents,
    edges_path,
    pair_documents,
    pairs_path,
)
from clozeline.pipeline.job.out_folder import prepare_folders
from clozeline.pipeline.job.steps import Steps
from clozeline.pipeline.job.token_cache import merge_cache_files, merged_name
from clozeline.pipeline.sources.block import Block


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What can be done at the same time."""

    label: str  #: of the transform in Beam's graph
    done: str  #: "blocks tokenized"
    items: Sequence[Any]
    #: Does an item, unless its files are there and whole.
    work: Callable[[Steps, Any], object]
    #: The files of an item, whose names are known once the phases before are complete.
    files: Callable[[Steps, Any], list[AnyPath]]

    def do(self, steps: Steps, item: object) -> None:
        """Do an item. Raises RuntimeError, which names the phase as Beam's errors do."""
        try:
            self.work(steps, item)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise RuntimeError(f"{reason} [while running '{self.label}']") from error


def phases(blocks: Sequence[Block], context: JobContext) -> list[Phase]:
    """The phases of a job that have something to do."""
    unique = {context.cache_input(block): block for block in blocks}
    every = [
        Phase(
            label="ReadExcluded",
            done="sets of excluded texts read",
            items=range(1 if context.excluded else 0),
            work=lambda steps, _: steps.excluded,
            files=lambda steps, _: [steps.context.excluded_path],
        ),
        Phase(
            label="TokenizeBlock",
            done="blocks tokenized",
            items=list(unique.values()),
            work=Steps.tokenize_block,
            files=lambda steps, block: steps.context.files_of(block),
        ),
        Phase(
            label="MergeBlocks",
            done="groups of blocks merged",
            items=[names for names in context.file_groups(blocks).values() if len(names) > 1],
            work=lambda steps, names: merge_cache_files(
                steps.context.cache_dir, names, num_buckets=len(steps.context.buckets)
            ),
            files=lambda steps, names: [steps.context.cache_dir / merged_name(names)],
        ),
        *chosen_phases(context),
        *_writing_phases(context),
    ]
    return [phase for phase in every if phase.items]


def chosen_phases(context: JobContext) -> list[Phase]:
    """What decides which documents stay: --deduplicate near, budgets of tokens."""
    partitions = range(context.partitions if context.drops_near else 0)
    mixed = range(context.buckets.num_train if context.budgets else 0)
    return [
        Phase(
            label="PairDocuments",
            done="partitions paired",
            items=partitions,
            work=lambda steps, partition: pair_documents(steps.context, partition),
            files=lambda steps, partition: [pairs_path(steps.context, partition)],
        ),
        Phase(
            label="CompareDocuments",
            done="partitions compared",
            items=partitions,
            work=lambda steps, partition: compare_documents(steps.context, partition),
            files=lambda steps, partition: [edges_path(steps.context, partition)],
        ),
        Phase(
            label="ConnectDocuments",
            done="graphs of near-duplicates connected",
            items=partitions[:1],
            work=lambda steps, _: connect_documents(steps.context),
            files=lambda steps, _: [steps.context.drops_path],
        ),
        Phase(
            label="CountDocuments",
            done="buckets counted",
            items=mixed,
            work=Steps.count_documents,
            files=lambda steps, bucket: [documents_path(steps.context, bucket)],
        ),
        Phase(
            label="ChooseDocuments",
            done="mixtures chosen",
            items=mixed[:1],
            work=lambda steps, _: choose_documents(steps.context),
            files=lambda steps, _: [mixture_path(steps.context)],
        ),
    ]


def _writing_phases(context: JobContext) -> list[Phase]:
    """All text is read: what is replaced goes, and the data set is written."""
    return [
        Phase(
            label="ReplaceDataSet",
            done="data sets removed",
            items=range(1 if context.replaces else 0),
            work=lambda steps, _: replace_data_set(steps),
            files=lambda steps, _: [],
        ),
        Phase(
            label="BuildShard",
            done="shards built",
            items=range(len(context.buckets)),
            work=Steps.build_shard,
            files=lambda steps, bucket: [
                steps.context.shard_path(bucket),
                steps.record_path(bucket),
            ],
        ),
        Phase(
            label="WriteManifest",
            done="manifests written",
            items=[MANIFEST],
            work=lambda steps, _: finish_dataset(steps),
            files=lambda steps, name: [steps.context.out_dir / name],
        ),
    ]


def replace_data_set(steps: Steps) -> None:
    """Remove the data set that is replaced. Raises as `check_examples`: then it stays."""
    check_examples(steps)
    prepare_folders(steps.context, steps.tokenizer)


def run_here(phases: Sequence[Phase], context: JobContext) -> None:
    """Do the work in this process, without Beam, whose import takes as long as a small job."""
    disable_malloc_trim()
    steps = Steps(context)
    for phase in phases:
        for item in phase.items:
            phase.do(steps, item)
