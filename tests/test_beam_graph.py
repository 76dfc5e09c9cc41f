"""What follows `--`: what Beam would ignore, or wait for in vain, is one line at once."""

import socket
import sys
from types import SimpleNamespace

import pytest
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.job.beam_graph import _closed_client, make_pipeline

PORTABLE = "--runner=PortableRunner"
DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"


@pytest.fixture
def nobody():
    """An address that is taken and where nobody listens."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{silent.getsockname()[1]}"


def refusal(*beam_args):
    """What is said of Beam options before any work begins."""
    with pytest.raises(InputError) as refused:
        make_pipeline(beam_args)
    return str(refused.value)


@pytest.mark.parametrize(
    "beam_args",
    [
        ["--flink_mster=host:8081"],
        ["--nonsense", "1", "--direct_num_workers=2"],
        [PORTABLE, "--job_endpoint=embed", "stray"],
    ],
)
def test_an_option_that_nobody_knows_is_named(beam_args):
    unknown = {"--nonsense": "--nonsense 1", PORTABLE: "stray"}.get(beam_args[0], beam_args[0])
    assert refusal(*beam_args).startswith(f"neither Beam nor the runner knows {unknown};")


def test_a_runner_that_is_not_installed_is_named():
    found = refusal("--runner=nowhere.to.be.Found")
    assert found.startswith("the runner cannot be imported (No module named 'nowhere')")


@pytest.mark.parametrize("mode", ["multi_processing", "multi_threading"])
def test_servers_that_run_what_anyone_sends_them_are_not_opened(mode):
    found = refusal(f"--direct_running_mode={mode}")
    assert found.startswith(f"--direct_running_mode={mode} opens servers")
    assert found.endswith("or use --workers without Beam.")


def test_a_job_server_that_does_not_answer_is_named_and_its_own_options_pass(nobody):
    found = refusal(PORTABLE, f"--job_endpoint={nobody}", "--an_option_of_its_own=1")
    assert found.startswith(f"--job_endpoint: cannot connect to {nobody} (")


@pytest.mark.parametrize(
    ("runner", "option", "address"),
    [("FlinkRunner", "--flink_master", "{}"), ("FlinkRunner", "--flink_master", "http://{}"),
     ("SparkRunner", "--spark_master_url", "spark://{}")],
)  # fmt: skip
def test_a_cluster_that_does_not_answer_is_named(runner, option, address, nobody):
    address = address.format(nobody)
    found = refusal(f"--runner={runner}", f"{option}={address}")
    assert found.startswith(f"{option}: cannot connect to {address} (")


@pytest.mark.parametrize(
    "beam_args", [["--runner=FlinkRunner"], ["--runner=SparkRunner", "--spark_master_url=local[4]"]]
)
def test_a_cluster_inside_the_job_server_is_not_asked(beam_args):
    make_pipeline(beam_args)


def test_a_missing_prism_is_named(tmp_path):
    found = refusal("--runner=PrismRunner", f"--prism_location={tmp_path}/prism")
    assert found.startswith(f"--prism_location: there is no file {tmp_path}/prism; ")


@pytest.mark.parametrize("address", ["tcp://{}", "{}", "tcp://127.0.0.1:port"])
def test_a_dask_scheduler_that_does_not_answer_is_named(address, nobody):
    pytest.importorskip("distributed", reason="needs clozeline[dask]")
    address = address.format(nobody)
    found = refusal(DASK, f"--dask_client_address={address}")
    assert found.startswith(f"--dask_client_address: cannot connect to {address} (")


class SlowClient:
    """Dask's, whose scheduler does not answer when it is closed."""

    def __init__(self):
        self.closed = 0

    def close(self, *, timeout):
        self.closed += 1
        raise TimeoutError(f"timed out after {timeout:.0f} s")


@pytest.fixture
def client(monkeypatch):
    """The default client of a `distributed` that is imported."""
    client = SlowClient()
    module = SimpleNamespace(default_client=lambda: client)
    monkeypatch.setitem(sys.modules, "distributed", module)
    return client


class DaskRunner(PipelineRunner):
    """As the one of Beam is named, which needs clozeline[dask]."""


def test_a_client_that_cannot_be_closed_is_logged_after_the_work(client, caplog):
    with _closed_client(DaskRunner()):
        pass
    assert client.closed == 1
    assert "Dask's client was not closed" in caplog.text
    assert "TimeoutError: timed out after 5 s" in caplog.text
    with pytest.raises(OSError, match="of the work"), _closed_client(DaskRunner()):
        raise OSError("of the work")


def test_a_client_of_somebody_else_stays_open(client):
    with _closed_client(PortableRunner()):
        pass
    assert client.closed == 0
