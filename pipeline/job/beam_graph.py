"""The graph. Nothing else in the project imports Beam."""

import argparse
import difflib
import logging
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.job.beam_workers import loopback_only
from clozeline.pipeline.job.finish import ShardTotals, finish_dataset
from clozeline.pipeline.job.steps import JobContext, ShardRecord, Steps
from clozeline.pipeline.job.token_cache import CacheInput, FileGroup, merge_cache_files
from clozeline.pipeline.sources.block import Block

SECONDS_TO_CONNECT: Final = 5.0


def run_graph(pipeline: beam.Pipeline, blocks: Sequence[Block], context: JobContext) -> None:
    """Run the whole job on an empty graph from `make_pipeline`; return when it is done.

    What a step or the runner raises passes through.
    """
    groups = context.file_groups(blocks)
    inputs = [group.result for group in groups]
    is_local = isinstance(pipeline.runner, FnApiRunner)
    around = loopback_only() if is_local else _closed_client(pipeline.runner)
    with around, pipeline as root:
        _ = (
            root
            | "ListBlocks" >> beam.Create(_by_group(blocks, groups, context))
            | "SpreadBlocks" >> beam.Reshuffle()
            | "TokenizeBlock" >> beam.ParDo(TokenizeBlock(context))
            | "GroupBlocks" >> beam.GroupByKey()
            | "MergeBlocks" >> beam.ParDo(MergeBlocks(context, num_groups=len(groups)))
            | "WaitForAll" >> beam.GroupByKey()
            | "BuildShard" >> beam.ParDo(BuildShard(context, inputs))
            # A default for no shards would be a side input: on Dask, a graph inside a task.
            | "AddShards" >> beam.CombineGlobally(AddShards()).without_defaults()  # type: ignore[no-untyped-call]
            | "WriteManifest" >> beam.Map(finish_dataset, context=context)
        )


class TokenizeBlock(beam.DoFn):
    """(group, block) -> (group, name of the block's token cache file)."""

    def __init__(self, context: JobContext) -> None:
        self.context = context

    def setup(self) -> None:
        """Once per worker: the tokenizer's memo is kept as long as the worker runs."""
        self.steps = Steps(self.context)

    def process(self, element: tuple[int, Block]) -> Iterator[tuple[int, str]]:
        """Tokenize one block."""
        group, block = element
        yield group, self.steps.tokenize_block(block).name


class MergeBlocks(beam.DoFn):
    """(group, names) -> (bucket, nothing) for the group's share of the buckets.

    Shards read the merged files of all groups, whose names they know. All they need from here is
    that every merge is done, which GroupByKey waits for.
    """

    def __init__(self, context: JobContext, *, num_groups: int) -> None:
        self.context, self.num_groups = context, num_groups

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[tuple[int, None]]:
        """Merge one group."""
        group, names = element
        members = list(dict.fromkeys(sorted(names)))
        num_buckets = len(self.context.buckets)
        if len(members) > 1:
            merge_cache_files(self.context.cache_dir, members, num_buckets=num_buckets)
        for bucket in range(group, num_buckets, self.num_groups):
            yield bucket, None


class BuildShard(beam.DoFn):
    """(bucket, nothing) -> the record of the bucket's shard."""

    def __init__(self, context: JobContext, inputs: Sequence[CacheInput]) -> None:
        self.context, self.inputs = context, inputs

    def setup(self) -> None:
        """Once per worker."""
        self.steps = Steps(self.context)
        self.cache = self.context.token_cache(self.inputs)

    def process(self, element: tuple[int, Iterable[None]]) -> Iterator[ShardRecord]:
        """Build one shard."""
        yield self.steps.build_shard(element[0], self.cache)


class AddShards(beam.CombineFn):
    """Records of shards -> ShardTotals; a worker adds up its own before it sends them."""

    def create_accumulator(self) -> ShardTotals:
        """No shards."""
        return ShardTotals()

    def add_input(self, totals: ShardTotals, record: ShardRecord) -> ShardTotals:
        """Add a shard."""
        totals.add(record)
        return totals

    def merge_accumulators(self, accumulators: Iterable[ShardTotals]) -> ShardTotals:
        """Add up the totals of several workers."""
        merged = ShardTotals()
        for totals in accumulators:
            merged.merge(totals)
        return merged

    def extract_output(self, totals: ShardTotals) -> ShardTotals:
        """The totals as they are."""
        return totals


@contextmanager
def _closed_client(runner: PipelineRunner) -> Iterator[None]:
    """Close the client of the DaskRunner at the end.

    Otherwise it keeps trying to reach a dead scheduler and prints each failure. With any other
    runner, the client is not Beam's.
    """
    try:
        yield
    finally:
        if type(runner).__name__ == "DaskRunner":  # cannot be imported without clozeline[dask]
            _close_client()


def _close_client() -> None:
    try:
        sys.modules["distributed"].default_client().close(timeout=SECONDS_TO_CONNECT)
    except Exception:  # the work is done, or its own error says more
        logging.getLogger(__name__).warning("Dask's client was not closed", exc_info=True)


def _by_group(
    blocks: Iterable[Block], groups: Iterable[FileGroup], context: JobContext
) -> list[tuple[int, Block]]:
    """Each block once, with the number of its group."""
    numbers = {
        CacheInput(name, group.repeat): number
        for number, group in enumerate(groups)
        for name in group.names
    }
    unique = {context.cache_input(block): block for block in blocks}
    return [(numbers[part], block) for part, block in unique.items()]


def make_pipeline(beam_args: Sequence[str]) -> beam.Pipeline:
    """An empty graph, once its runner is known to understand the options and to be reachable.

    Raises InputError for an unknown option or runner, a runner that is not installed, and an
    address that does not accept connections; SystemExit for what Beam's own parser refuses.
    """
    beam_args = list(beam_args)
    try:
        root = beam.Pipeline(options=PipelineOptions(beam_args))
    except ImportError as error:
        raise InputError(
            f"the runner cannot be imported ({error}); install what it needs. The Dask runner "
            "comes with clozeline[dask]."
        ) from error
    except ValueError as error:  # an unknown runner
        raise InputError(f"Beam rejects the options after --: {error}") from error
    parsers: list[argparse.ArgumentParser] = []  # of all options, including the runner's own
    values = root.options.get_all_options(add_extra_args_fn=parsers.append)
    _, unknown = parsers[0].parse_known_args(beam_args)
    endpoint = values["job_endpoint"]
    # A job server may have options that Beam's Python does not know.
    is_remote = isinstance(root.runner, PortableRunner) and endpoint != "embed"
    near = _nearest(unknown, known=parsers[0]._option_string_actions)
    if unknown and (near or not is_remote):
        raise InputError(
            f"neither Beam nor the runner knows {' '.join(unknown)}; what follows -- is passed to "
            f"Beam{near}."
        )
    for option, name in {
        "--job_endpoint": "job_endpoint",
        "--dask_client_address": "address",
    }.items():
        if address := values.get(name):
            _check_connection(option, address)
    return root


def _nearest(unknown: Sequence[str], *, known: Iterable[str]) -> str:
    """ " (did you mean --flink_master?)" for the first option that is like a known one."""
    for option in unknown:
        found = difflib.get_close_matches(option.partition("=")[0], list(known), n=1, cutoff=0.85)
        if option.startswith("--") and found:
            return f" (did you mean {found[0]}?)"
    return ""


def _check_connection(option: str, address: str) -> None:
    """Raises InputError at once, where Beam and Dask would retry for half a minute or more."""
    where = urlsplit(address if "//" in address else f"//{address}")
    try:
        if where.hostname and where.port:  # not `embed`, not a Unix socket
            socket.create_connection((where.hostname, where.port), SECONDS_TO_CONNECT).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{option}: cannot connect to {address} ({error}); start it or give another address."
        ) from error
