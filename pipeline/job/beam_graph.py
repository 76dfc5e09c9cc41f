"""The graph. Nothing else in the project imports Beam."""

import argparse
import difflib
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Final
from urllib.parse import urlsplit

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.transforms import combiners

from pipeline.common.errors import InputError
from pipeline.job.beam_workers import loopback_only
from pipeline.job.finish import finish_dataset
from pipeline.job.steps import JobContext, ShardRecord, Steps
from pipeline.job.token_cache import CacheSlice
from pipeline.sources.block import Block

SECONDS_TO_CONNECT: Final = 5.0


def run_graph(blocks: Sequence[Block], *, context: JobContext, beam_args: Sequence[str]) -> None:
    """Run the whole job on the runner that the Beam options name; return when it is done.

    Raises InputError for an unknown option or runner, a runner that is not installed, and an
    address that does not accept connections. What a step or the runner raises passes through.
    """
    pipeline = _pipeline(list(beam_args))
    is_local = isinstance(pipeline.runner, FnApiRunner)
    with loopback_only() if is_local else nullcontext(), pipeline as root:
        _ = (
            root
            | "ListBlocks" >> beam.Create(blocks)
            | "SpreadBlocks" >> beam.Reshuffle()
            | "TokenizeBlock" >> beam.ParDo(TokenizeBlock(context))
            | "GroupByBucket" >> beam.GroupByKey()
            | "BuildShard" >> beam.ParDo(BuildShard(context))
            # A default for no shards would be a side input: on Dask, a graph inside a task.
            | "CollectShards" >> combiners.ToList().without_defaults()
            | "WriteManifest" >> beam.Map(finish_dataset, context=context)
        )


class TokenizeBlock(beam.DoFn):
    """Block -> (bucket, slice of the block's token cache file) for each bucket."""

    def __init__(self, context: JobContext) -> None:
        self.context = context

    def setup(self) -> None:
        """Once per worker: the tokenizer's memo is kept as long as the worker runs."""
        self.steps = Steps(self.context)

    def process(self, block: Block) -> Iterator[tuple[int, CacheSlice]]:
        """Tokenize one block."""
        yield from self.steps.tokenize_block(block)


class BuildShard(beam.DoFn):
    """(bucket, slices) -> the record of the bucket's shard."""

    def __init__(self, context: JobContext) -> None:
        self.context = context

    def setup(self) -> None:
        """Once per worker."""
        self.steps = Steps(self.context)

    def process(self, bucket: tuple[int, Iterable[CacheSlice]]) -> Iterator[ShardRecord]:
        """Build one shard."""
        yield self.steps.build_shard(*bucket)


def _pipeline(beam_args: list[str]) -> beam.Pipeline:
    """An empty graph, once its runner is known to understand the options and to be reachable."""
    try:
        root = beam.Pipeline(options=PipelineOptions(beam_args))
    except ImportError as error:
        raise InputError(
            f"the runner cannot be imported ({error}); install what it needs. The Dask runner "
            "comes with clozeline[dask]."
        ) from error
    except ValueError as error:  # an unknown runner
        raise InputError(f"Beam rejects the options after --: {error}") from error
    parsers: list[argparse.ArgumentParser] = []  # of all options, also the runner's own
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
    """Beam and Dask would retry for half a minute and more."""
    where = urlsplit(address if "//" in address else f"//{address}")
    try:
        if where.hostname and where.port:  # not `embed`, not a Unix socket
            socket.create_connection((where.hostname, where.port), SECONDS_TO_CONNECT).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{option}: cannot connect to {address} ({error}); start it or give another address."
        ) from error
