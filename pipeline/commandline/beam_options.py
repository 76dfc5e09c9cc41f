"""What follows `--`: Beam's options, checked, and the runner that they name."""

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from clozeline.pipeline.common.errors import InputError, did_you_mean

SECONDS_TO_CLOSE: Final = 5.0
#: In full, because `DirectRunner` tries to download another one.
IN_THIS_PROCESS: Final = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
#: Beam knows the short names of all others.
IN_FULL: Final = {
    "daskrunner": "apache_beam.runners.dask.dask_runner.DaskRunner",
    "renderrunner": "apache_beam.runners.render.RenderRunner",
}


@contextmanager
def closed_client(runner: PipelineRunner) -> Iterator[None]:
    """Close the client of the DaskRunner at the end.

    Otherwise it keeps trying to reach a dead scheduler and prints each failure. With any other
    runner, the client is not Beam's.
    """
    try:
        yield
    finally:
        try:
            if type(runner).__name__ == "DaskRunner":  # not importable without clozeline[dask]
                sys.modules["distributed"].default_client().close(timeout=SECONDS_TO_CLOSE)
        except Exception:  # the work is done, or its own error says more
            logging.getLogger(__name__).warning("Dask's client was not closed", exc_info=True)


def make_pipeline(beam_args: Sequence[str]) -> beam.Pipeline:
    """An empty graph, once its runner is known to understand the options.

    Without `--runner`, Beam works in this process.
    Raises InputError for an unknown option or runner, and for a runner that is not installed;
    SystemExit for what Beam's own parser refuses.
    """
    beam_args = [IN_THIS_PROCESS, *map(_in_full, beam_args)]  # the last --runner counts
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
    if isinstance(root.runner, FnApiRunner):
        _check_direct(values)
    end = _end(unknown, known=parsers[0]._option_string_actions)
    if unknown and (end != "." or not is_remote):
        raise InputError(
            f"neither Beam nor the runner knows {' '.join(unknown)}; what follows -- is passed to "
            f"Beam{end}"
        )
    return root


def _in_full(argument: str) -> str:
    """--runner=DaskRunner, or DaskRunner, with the runner's full name."""
    option, is_given, name = argument.rpartition("=")
    full = IN_FULL.get(name.lower()) if option in ("", "--runner") else None
    return f"{option}{is_given}{full}" if full else argument


def _check_direct(values: Mapping[str, Any]) -> None:
    """Raises InputError for more than one process or thread of Beam's own on this machine."""
    mode, number = values["direct_running_mode"], values["direct_num_workers"]
    if mode != "in_memory":
        raise InputError(
            f"--direct_running_mode={mode} opens servers to the network that run what anyone sends "
            "them; leave out -- and what follows it, and use --workers."
        )
    if number != 1:
        raise InputError(
            f"--direct_num_workers={number} starts no other process; leave out -- and what follows "
            f"it, and use --workers {number}."
        )


def beam_help() -> str:
    """All options that Beam's parser knows, with those of its runners."""
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    parsers[0].prog = "clozeline shards ... --"
    return parsers[0].format_help()


def _end(unknown: Sequence[str], *, known: Iterable[str]) -> str:
    """ "; did you mean --flink_master?" for the first option that is like a known one; or "."."""
    names = (option.partition("=")[0] for option in unknown if option.startswith("--"))
    ends = (did_you_mean(name, known, cutoff=0.85) for name in names)
    return next((end for end in ends if end != "."), ".")
