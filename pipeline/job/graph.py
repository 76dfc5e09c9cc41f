"""The pipeline. Every worker, task and engine runs this graph.

    "Blocks"     -> Block                    slices of the sources
    "Tokenize"   -> TokenFile                read | curate | sentences | tokens
    "AllTokens"  -> Shard                    when all token files are there
    "Examples"   -> ShardEntry               load | pair | mask | write
    "AllShards"  -> "manifest.json"          when all shards are there
    "Manifest"

Where they are asked for, other stages stand between these: excluded texts before the blocks;
merged files, near-duplicates, budgets and a data set that is replaced after the tokens. Each has
the same two parts, of which the first waits for all that comes before.

Token files carry the text, references to them travel: one for a block, never one for a shard.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult

from clozeline.pipeline.commandline.beam_options import closed_client
from clozeline.pipeline.job.out_folder import finished_dataset
from clozeline.pipeline.job.stages import (
    EMPTY,
    NAMESPACE,
    BuildShard,
    ChooseMixture,
    CompareDocuments,
    ConnectDocuments,
    CountDocuments,
    MergeBlocks,
    PairDocuments,
    ReadExcluded,
    ReplaceDataSet,
    Step,
    TokenizeBlock,
    WriteManifest,
)
from clozeline.pipeline.job.tasks import Outcome, Share
from clozeline.pipeline.job.texts import ReadBlock, WriteTexts
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.steps import Steps


def data_set(root: beam.Pipeline, context: JobContext, share: Share | None = None) -> None:
    """Add the graph of a job; without a share, the runner spreads all of it."""
    tokenize, build = TokenizeBlock(context), BuildShard(context)
    manifest, all_of = WriteManifest(context), partial(All, share=share)
    begin: Any = root
    if context.excluded:
        begin |= "Excluded" >> Stages(share, ReadExcluded(context))
    tokens = begin | "Blocks" >> all_of(tokenize) | "Tokenize" >> beam.ParDo(tokenize)
    if context.merged:
        tokens |= "Merge" >> Stages(share, MergeBlocks(context))
    if context.drops_near:
        near = PairDocuments(context), CompareDocuments(context), ConnectDocuments(context)
        tokens |= "NearDuplicates" >> Stages(share, *near)
    if context.budgets:
        tokens |= "Budgets" >> Stages(share, CountDocuments(context), ChooseMixture(context))
    if context.replaces:
        tokens |= "Replace" >> Stages(share, ReplaceDataSet(context))
    _ = (
        tokens
        | "AllTokens" >> all_of(build)
        | "Examples" >> beam.ParDo(build)
        | "AllShards" >> all_of(manifest)
        | "Manifest" >> beam.ParDo(manifest)
    )


def data_set_of_texts(root: beam.Pipeline, context: JobContext) -> None:
    """Add the graph of a job without a token cache, whose text the runner shuffles."""
    read = ReadBlock(with_counts=True, allow_truncated=context.allow_truncated)
    blocks = root | "Blocks" >> beam.Create([*context.blocks]) | beam.Reshuffle()
    _ = blocks | "Read" >> beam.ParDo(read) | "Write" >> WriteTexts(context)


class All(beam.PTransform[Any, Any]):
    """What the stage before has done -> the elements of a step, once all of that is done."""

    def __init__(self, step: Step, share: Share | None) -> None:
        super().__init__()
        self.step, self.share = step, share

    def expand(self, before: Any) -> PCollection[Any]:
        if isinstance(before, PCollection):
            all_before = before | "Key" >> beam.Map(_with_key) | beam.GroupByKey()
        elif self.share:
            all_before = before | beam.Create([(0, [])])
        else:  # Dask makes as many partitions as there are elements here
            every = before | beam.Create([*self.step.elements(), EMPTY])
            spread: PCollection[Any] = every | beam.Reshuffle()
            return spread
        listed: PCollection[Any] = all_before | "List" >> beam.ParDo(List(self.step, self.share))
        return listed if self.share else listed | beam.Reshuffle()


class Stages(beam.PTransform[Any, Any]):
    """What is done before -> what the last of these steps makes, each after the one before."""

    def __init__(self, share: Share | None, *steps: Step) -> None:
        super().__init__()
        self.share, self.steps = share, steps

    def expand(self, before: Any) -> PCollection[Any]:
        made: PCollection[Any] = before
        for step in self.steps:
            made |= f"Before{step.label}" >> All(step, self.share)
            made |= step.label >> beam.ParDo(step)
        return made


def _with_key(element: object) -> tuple[int, object]:
    """One key for all elements: a number, which has the same hash in each process of Dask."""
    return 0, element


class List(beam.DoFn):
    """(0, all that is done) -> the elements of a step: all, or those of a share.

    And an empty one, so that the next stage begins also where this one has nothing to do.
    """

    def __init__(self, step: Step, share: Share | None) -> None:
        self.step, self.share = step, share

    def process(self, _: tuple[int, Iterable[object]]) -> Iterator[Any]:
        if self.share:
            yield from self.share.of(self.step, Steps(self.step.context))
        else:
            yield from self.step.elements()
        yield EMPTY


def run_graph(
    context: JobContext, share: Share | None = None, root: beam.Pipeline | None = None
) -> Outcome:
    """Run a share of the graph in this process, or all of it on the runner of an empty `root`.

    What a step or the runner raises passes through. If other tasks have finished the data set
    meanwhile, and removed the token cache, all is well.
    """
    is_task = share is not None and share.is_of_task
    if is_task and finished_dataset(context):
        return Outcome(Counter(), is_last=False)
    root = root or beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    try:
        with closed_client(root.runner):
            if context.has_cache:
                data_set(root, context, share)
            else:
                data_set_of_texts(root, context)
            result = root.run()
            result.wait_until_finish()
    except Exception:
        if is_task and finished_dataset(context):
            return Outcome(Counter(), is_last=False)
        raise
    return Outcome(counters(result), is_last=True)


def counters(result: PipelineResult) -> Counter[str]:
    """What the steps have counted, of a runner that has metrics; else nothing."""
    try:
        found = result.metrics().query()["counters"]
    except NotImplementedError:  # Dask's
        return Counter()
    ours = (one for one in found if one.key.metric.namespace == NAMESPACE)
    total = Counter[str]()
    for one in ours:
        total[one.key.metric.name] += one.committed or 0
    return total
