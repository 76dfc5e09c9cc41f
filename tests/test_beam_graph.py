"""What follows `--`: what Beam would ignore, or wait for in vain, is one line at once."""

import socket
from collections.abc import Iterator

import pytest

from pipeline.common.errors import InputError
from pipeline.job.beam_graph import run_graph
from tests.test_steps import work

PORTABLE = "--runner=PortableRunner"
DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken and where nobody listens."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{silent.getsockname()[1]}"


def refusal(folder, *beam_args):
    """What is said of Beam options before any work begins."""
    blocks, context = work(folder)
    with pytest.raises(InputError) as refused:
        run_graph(blocks, context=context, beam_args=beam_args)
    assert not list(context.cache_dir.iterdir())
    return str(refused.value)


@pytest.mark.parametrize(
    "beam_args",
    [
        ["--flink_mster=host:8081"],
        ["--nonsense", "1", "--direct_num_workers=2"],
        [PORTABLE, "--job_endpoint=embed", "stray"],
    ],
)
def test_an_option_that_nobody_knows_is_named(beam_args, tmp_path):
    unknown = {"--nonsense": "--nonsense 1", PORTABLE: "stray"}.get(beam_args[0], beam_args[0])
    assert refusal(tmp_path, *beam_args).startswith(f"neither Beam nor the runner knows {unknown};")


def test_a_runner_that_is_not_installed_is_named(tmp_path):
    found = refusal(tmp_path, "--runner=nowhere.to.be.Found")
    assert found.startswith("the runner cannot be imported (No module named 'nowhere')")


def test_a_job_server_that_does_not_answer_is_named_and_its_own_options_pass(nobody, tmp_path):
    found = refusal(tmp_path, PORTABLE, f"--job_endpoint={nobody}", "--an_option_of_its_own=1")
    assert found.startswith(f"--job_endpoint: cannot connect to {nobody} (")


@pytest.mark.parametrize("address", ["tcp://{}", "{}", "tcp://127.0.0.1:port"])
def test_a_dask_scheduler_that_does_not_answer_is_named(address, nobody, tmp_path):
    pytest.importorskip("distributed", reason="needs clozeline[dask]")
    address = address.format(nobody)
    found = refusal(tmp_path, DASK, f"--dask_client_address={address}")
    assert found.startswith(f"--dask_client_address: cannot connect to {address} (")
