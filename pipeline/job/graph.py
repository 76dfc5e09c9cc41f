"""The pipeline. Every worker, task and engine runs this graph.

    "Blocks"     -> Block                    slices of the sources
    "Tokenize"   -> TokenFile                read | curate | sentences | tokens
    "AllTokens"  -> Shard                    when all token files are there
    "Examples"   -> ShardEntry               load | pair | mask | write
    "AllShards"  -> "manifest.json"          when all shards are there
    "Manifest"

Where they are asked for, other stages stand after the tokens: merged files, near-duplicates,
budgets and a data set that is replaced. Each has the same two parts, of which the first waits for
all that comes before.

Token files carry the text, references to them travel: one for a block, never one for a shard.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Final

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult

from clozeline.pipeline.commandline.beam_options import closed_client
from clozeline.pipeline.common.counts import Counts, disable_malloc_trim
from clozeline.pipeline.job.out_folder import finished_dataset, prepare_folders
from clozeline.pipeline.job.tasks import Outcome, Share
from clozeline.pipeline.job.texts import NAMESPACE, ReadBlock, WriteTexts, counted
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.finish import check_examples
from clozeline.pipeline.steps.stages import (
    BUDGETS,
    BUILD,
    FINISH,
    MERGE,
    NEAR_DUPLICATES,
    TOKENIZE,
    Stage,
    with_files,
)
from clozeline.pipeline.steps.steps import Steps

EMPTY: Final = None  #: the element that stands for none


def replace_data_set(steps: Steps, folder: str) -> tuple[str, Counts]:
    """Remove the data set that is replaced. Raises as `check_examples`: then it stays."""
    check_examples(steps)
    prepare_folders(steps.context, steps.tokenizer)
    return folder, Counts()


#: All text is read: the data set that is replaced goes, if the new one has examples.
REPLACE: Final = Stage(
    "ReplaceDataSet",
    "data sets removed",
    lambda context: [str(context.out_dir)],
    lambda steps, folder: [],
    replace_data_set,
)


def data_set(root: beam.Pipeline, context: JobContext, share: Share | None = None) -> None:
    """Add the graph of a job; without a share, the runner spreads all of it."""
    all_of, stages = partial(All, context, share), partial(Stages, context, share)
    tokens: Any = root | "Blocks" >> all_of(TOKENIZE) | "Tokenize" >> _do(context, TOKENIZE)
    if context.merged:
        tokens |= "Merge" >> stages(MERGE)
    if context.drops_near:
        tokens |= "NearDuplicates" >> stages(*NEAR_DUPLICATES)
    if context.budgets:
        tokens |= "Budgets" >> stages(*BUDGETS)
    if context.replaces:
        tokens |= "Replace" >> stages(REPLACE)
    _ = (
        tokens
        | "AllTokens" >> all_of(BUILD)
        | "Examples" >> _do(context, BUILD)
        | "AllShards" >> all_of(FINISH)
        | "Manifest" >> _do(context, FINISH)
    )


def data_set_of_texts(root: beam.Pipeline, context: JobContext) -> None:
    """Add the graph of a job without a token cache, whose text the runner shuffles."""
    read = ReadBlock(with_counts=True)
    blocks = root | "Blocks" >> beam.Create([*context.blocks]) | beam.Reshuffle()
    _ = blocks | "Read" >> beam.ParDo(read) | "Write" >> WriteTexts(context)


class All(beam.PTransform[Any, Any]):
    """The barrier: what a stage has finished -> the elements of the next one."""

    def __init__(self, context: JobContext, share: Share | None, stage: Stage) -> None:
        super().__init__()
        self.context, self.share, self.stage = context, share, stage

    def expand(self, before: Any) -> PCollection[Any]:
        if isinstance(before, PCollection):
            # The key is a number, which has the same hash in each process of Dask.
            all_before = before | "Key" >> beam.Map(lambda done: (0, done)) | beam.GroupByKey()
        elif self.share:
            all_before = before | beam.Create([(0, [])])
        else:  # Dask makes as many partitions as there are elements here
            every = before | beam.Create([*self.stage.elements(self.context), EMPTY])
            spread: PCollection[Any] = every | beam.Reshuffle()
            return spread
        list_all = List(self.context, self.share, self.stage)
        listed: PCollection[Any] = all_before | "List" >> beam.ParDo(list_all)
        return listed if self.share else listed | beam.Reshuffle()


class Stages(beam.PTransform[Any, Any]):
    """What is done before -> what the last of these stages makes, each after the one before."""

    def __init__(self, context: JobContext, share: Share | None, *stages: Stage) -> None:
        super().__init__()
        self.context, self.share, self.stages = context, share, stages

    def expand(self, before: Any) -> PCollection[Any]:
        made: PCollection[Any] = before
        for stage in self.stages:
            made |= f"Before{stage.label}" >> All(self.context, self.share, stage)
            made |= stage.label >> _do(self.context, stage)
        return made


def _do(context: JobContext, stage: Stage) -> Any:
    """Each element of a stage -> what it becomes."""
    return beam.ParDo(DoStage(context, stage))


class List(beam.DoFn):
    """(0, all that is done) -> the elements of a stage: all, or those of a share.

    And an empty one, so that the next stage begins also where this one has nothing to do.
    """

    def __init__(self, context: JobContext, share: Share | None, stage: Stage) -> None:
        self.context, self.share, self.stage = context, share, stage

    def process(self, _: tuple[int, Iterable[object]]) -> Iterator[Any]:
        if self.share:
            yield from self.share.of(self.stage, Steps(self.context))
        else:
            yield from self.stage.elements(self.context)
        yield EMPTY


class DoStage(beam.DoFn):
    """An element of a stage -> what it becomes, in files that are written unless they are there.

    A process has as few `Steps` as it can: they are large.
    """

    _idle: ClassVar[list[Steps]] = []
    _lock: ClassVar = threading.Lock()  # an engine may have threads

    def __init__(self, context: JobContext, stage: Stage) -> None:
        self.context, self.stage = context, stage

    def setup(self) -> None:
        disable_malloc_trim()

    def start_bundle(self) -> None:
        with DoStage._lock:
            idle = [steps for steps in DoStage._idle if steps.context == self.context]
            self.steps = idle.pop() if idle else Steps(self.context)
            DoStage._idle[:] = idle

    def finish_bundle(self) -> None:
        with DoStage._lock:
            DoStage._idle.append(self.steps)

    def process(self, element: Any) -> Iterator[object]:
        if element is EMPTY:
            yield EMPTY
            return
        made, counts = with_files(self.steps, lambda: self.stage.make(self.steps, element))
        for name, number in counted(counts).items():
            Metrics.counter(NAMESPACE, name).inc(number)
        yield made


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
        results = result.metrics().query()["counters"]
    except NotImplementedError:  # Dask's
        return Counter()
    total = Counter[str]()
    for one in results:
        if one.key.metric.namespace == NAMESPACE:
            total[one.key.metric.name] += one.result or 0  # Spark counts attempts alone
    return total
