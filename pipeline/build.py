"""The graph. Nothing else in the project imports Beam."""

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.runs import RunSlice
from pipeline.sources import Block
from pipeline.steps import ShardRecord, Steps, Workplace, finish


def run_graph(blocks: Sequence[Block], *, place: Workplace, beam_args: Sequence[str]) -> None:
    """Run the whole job on the runner that the Beam options name; returns when it is done."""
    with beam.Pipeline(options=PipelineOptions(list(beam_args))) as root:
        _ = (
            root
            | "ListBlocks" >> beam.Create(blocks)
            | "SpreadBlocks" >> beam.Reshuffle()
            | "TokenizeBlock" >> beam.ParDo(TokenizeBlock(place))
            | "GroupByBucket" >> beam.GroupByKey()
            | "BuildShard" >> beam.ParDo(BuildShard(place))
            | "CollectShards" >> beam.combiners.ToList()
            | "WriteManifest" >> beam.Map(finish, place=place)
        )


class TokenizeBlock(beam.DoFn):
    """Block -> (bucket, slice of the block's run)."""

    def __init__(self, place: Workplace) -> None:
        self.place = place

    def setup(self) -> None:
        """Once a worker: the tokenizer's memo lives as long as the worker does."""
        self.steps = Steps(self.place)

    def process(self, block: Block) -> Iterator[tuple[int, RunSlice]]:
        """Tokenize one block."""
        yield from self.steps.tokenize_block(block)


class BuildShard(beam.DoFn):
    """(bucket, slices) -> what is known of the bucket's shard."""

    def __init__(self, place: Workplace) -> None:
        self.place = place

    def setup(self) -> None:
        """Once a worker."""
        self.steps = Steps(self.place)

    def process(self, bucket: tuple[int, Iterable[RunSlice]]) -> Iterator[ShardRecord]:
        """Build one shard."""
        yield self.steps.build_shard(*bucket)
