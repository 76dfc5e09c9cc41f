"""What follows `--`: what Beam would ignore, or wait for in vain, is one line at once."""

import socket
import sys
from types import SimpleNamespace

import pytest
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.job.beam_options import closed_client, make_pipeline

DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"
FLINK, PORTABLE, SPARK = (f"--runner={name}Runner" for name in ("Flink", "Portable", "Spark"))


@pytest.fixture
def nobody():
    """An address that is taken and where nobody listens."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{silent.getsockname()[1]}"


@pytest.mark.parametrize(
    ("beam_args", "message"),
    [
        (["--flink_mster=host:8081"], "neither Beam nor the runner knows --flink_mster=host:8081;"),
        (["--nonsense", "1", "--direct_num_workers=2"], "neither .* runner knows --nonsense 1;"),
        ([PORTABLE, "--job_endpoint=embed", "stray"], "neither Beam nor the runner knows stray;"),
        (["--runner=nowhere.to.be.Found"], "the runner cannot be .* module named 'nowhere'"),
        (["--direct_running_mode=multi_processing"], ".*=multi_processing opens servers.*--worker"),
        (["--direct_running_mode=multi_threading"], ".*=multi_threading opens servers"),
        ([PORTABLE, "--job_endpoint={}", "--its_own=1"], "--job_endpoint: cannot connect to {} "),
        ([FLINK, "--flink_master={}"], "--flink_master: cannot connect to {} "),
        ([FLINK, "--flink_master=http://{}"], "--flink_master: cannot connect to http://{} "),
        ([SPARK, "--spark_master_url=spark://{}"], "--spark_master_url: cannot .* to spark://{} "),
        (["--runner=PrismRunner", "--prism_location=/no/prism"], ".*: there is no file /no/prism"),
        ([DASK, "--dask_client_address=tcp://{}"], "--dask_.*: cannot connect to tcp://{} "),
        ([DASK, "--dask_client_address={}"], "--dask_client_address: cannot connect to {} "),
        ([DASK, "--dask_client_address=tcp://127.0.0.1:port"], ".* to tcp://127.0.0.1:port "),
    ],
)
def test_what_cannot_be_used_is_named_before_any_work_begins(beam_args, message, nobody):
    if DASK in beam_args:
        pytest.importorskip("distributed", reason="needs clozeline[dask]")
    with pytest.raises(InputError, match=rf"^{message.format(nobody)}"):
        make_pipeline([argument.format(nobody) for argument in beam_args])


@pytest.mark.parametrize("beam_args", [[FLINK], [SPARK, "--spark_master_url=local[4]"]])
def test_a_cluster_inside_the_job_server_is_not_asked(beam_args):
    make_pipeline(beam_args)


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
    with closed_client(DaskRunner()):
        pass
    assert client.closed == 1
    assert "Dask's client was not closed" in caplog.text
    assert "TimeoutError: timed out after 5 s" in caplog.text
    with pytest.raises(OSError, match="of the work"), closed_client(DaskRunner()):
        raise OSError("of the work")


def test_a_client_of_somebody_else_stays_open(client):
    with closed_client(PortableRunner()):
        pass
    assert client.closed == 0
