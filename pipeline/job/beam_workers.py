"""Worker processes of Beam: those of the local runner, and those that other runners start.

The local ones are started without a shell, watched, on loopback only. Beam 2.77 starts a worker
with `shell=True` and an unquoted `sys.executable`, waits for ever if it dies, and binds its
unauthenticated servers to all interfaces. Importing this module registers a worker handler without
the first two; `loopback_only` closes the third.

`clozeline-worker` is what a runner with `--environment_type=PROCESS` starts on its hosts.
"""

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from apache_beam.portability import python_urns
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    GrpcWorkerHandler,
    WorkerHandler,
)
from google.protobuf import json_format, text_format

from clozeline.pipeline.job.worker import WORKER as SDK_WORKER

WORKER: Final = str(Path(__file__).with_name("worker.py"))
SECONDS_BETWEEN_CHECKS: Final = 0.2
SECONDS_TO_EXIT: Final = 10.0
SECONDS_TO_PROVISION: Final = 60.0


@WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)
class LocalWorker(GrpcWorkerHandler):
    """One worker process; if it dies, everything it was asked to do fails at once."""

    def __init__(self, command: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)  # `command` is for a shell
        self._is_stopping = threading.Event()

    def start_worker(self) -> None:
        """Start the process; it connects to the control server by itself."""
        environment = _environment(
            self.worker_id,
            control=self.control_address,
            logging=self.logging_api_service_descriptor().url,
            options=self.provision_info.provision_info.pipeline_options,
        )
        # The pipe ends with this process, and the worker with the pipe.
        command = [sys.executable, WORKER]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        threading.Thread(target=self._watch, daemon=True).start()

    def stop_worker(self) -> None:
        """The control connection is closed, so the process ends; kill it if it does not."""
        self._is_stopping.set()
        try:
            self._process.wait(SECONDS_TO_EXIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the handler; from now on, an exit is expected."""
        self._is_stopping.set()
        super().close()

    def _watch(self) -> None:
        code = self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        message = f"a worker process exited unexpectedly ({reason})"
        while not self._is_stopping.wait(SECONDS_BETWEEN_CHECKS):
            # Again and again: the runner may ask for something more before it sees the failure.
            for request, future in list(self.control_conn._futures_by_id.items()):
                if not future.is_done():
                    answer = beam_fn_api_pb2.InstructionResponse
                    future.set(answer(instruction_id=request, error=message))


def boot() -> None:
    """Become a worker, as the command of a PROCESS environment.

    --id=1-1 --provision_endpoint=127.0.0.1:34567

    The provision service names the other ones. A pool passes them, too; Flink and Spark do not.
    """
    parser = argparse.ArgumentParser(prog="clozeline-worker", description=boot.__doc__)
    for name in ("--id", "--provision_endpoint"):
        parser.add_argument(name, required=True)
    given, _ = parser.parse_known_args()  # nothing is staged, so artifacts are not fetched
    with grpc.insecure_channel(given.provision_endpoint) as channel:
        info = (
            beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
            .GetProvisionInfo(
                beam_provision_api_pb2.GetProvisionInfoRequest(),
                metadata=[("worker_id", given.id)],
                timeout=SECONDS_TO_PROVISION,
                wait_for_ready=True,
            )
            .info
        )
    environment = _environment(
        given.id,
        control=info.control_endpoint.url,
        logging=info.logging_endpoint.url,
        options=info.pipeline_options,
    )
    environment["RUNNER_CAPABILITIES"] = " ".join(info.runner_capabilities)
    # Not a child: the runner stops the process that it has started.
    os.execve(sys.executable, [sys.executable, "-m", SDK_WORKER], environment)


def _environment(worker_id: str, *, control: str, logging: str, options: Any) -> dict[str, str]:
    """The environment variables from which Beam's worker takes what it needs."""
    services = {"CONTROL": control, "LOGGING": logging}
    return os.environ | {
        "WORKER_ID": worker_id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(options),
        **{
            f"{name}_API_SERVICE_DESCRIPTOR": text_format.MessageToString(
                endpoints_pb2.ApiServiceDescriptor(url=url)
            )
            for name, url in services.items()
        },
    }


@contextmanager
def loopback_only() -> Iterator[None]:
    """Bind the gRPC servers that Beam starts inside the block to 127.0.0.1.

    Beam's servers carry pickles without authentication, and it offers no option for the address.
    """
    make_server = grpc.server

    def loopback_server(*args: Any, **kwargs: Any) -> Any:
        server = make_server(*args, **kwargs)
        bind = server.add_insecure_port
        server.add_insecure_port = lambda address: bind(f"127.0.0.1:{address.rpartition(':')[2]}")
        return server

    grpc.server = loopback_server
    try:
        yield
    finally:
        grpc.server = make_server
