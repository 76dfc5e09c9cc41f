"""The local runner's workers: a dead one fails the job, no shell starts one, none is public."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from clozeline.pipeline.job.beam_workers import loopback_only

OPTIONS = (
    "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",
    "--direct_running_mode=multi_processing",
    "--direct_num_workers=2",
)


class KillYourself(beam.DoFn):
    """What the kernel does when memory runs out."""

    def process(self, element):
        os.kill(os.getpid(), signal.SIGKILL)


class ParentsListeners(beam.DoFn):
    """The addresses at which the process that started this worker listens."""

    def process(self, folder):
        import psutil

        found = psutil.Process(os.getppid()).net_connections("inet")
        addresses = {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}
        (Path(folder) / "listeners").write_text(" ".join(sorted(addresses)))


def run(element, do_fn):
    with loopback_only(), beam.Pipeline(options=PipelineOptions(OPTIONS)) as root:
        _ = root | beam.Create([element]) | beam.Reshuffle() | beam.ParDo(do_fn)


# Beam's own reading thread ends with the connection's error, which it does not catch.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_worker_fails_the_job():
    with pytest.raises(Exception, match=r"worker process exited .* \(killed by signal 9\)"):
        run("anything", KillYourself())


def test_a_worker_that_dies_before_it_connects_fails_the_job(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=r"worker process exited .* \(exit code 1\)"):
        run("anything", KillYourself())


def test_the_runner_listens_on_loopback_only(tmp_path):
    run(str(tmp_path), ParentsListeners())
    addresses = (tmp_path / "listeners").read_text().split()
    assert addresses
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_the_path_of_python_never_reaches_a_shell(tmp_path):
    folder = tmp_path / f"a b; touch {tmp_path.name}-owned #"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    code = (
        "import sys; sys.path.insert(0, '.'); sys.executable = sys.argv[1]\n"
        "from tests.test_beam_workers import *\n"
        "run(sys.argv[2], ParentsListeners())"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, python, tmp_path], check=True, cwd=root)
    assert (tmp_path / "listeners").exists()
    assert not list(root.glob("*-owned"))
