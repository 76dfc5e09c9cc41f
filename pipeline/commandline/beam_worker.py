"""`clozeline-worker`: what a runner with `--environment_type=PROCESS` starts on its hosts."""

import argparse
import os
import sys
from typing import Final

import grpc
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

SDK_WORKER: Final = "apache_beam.runners.worker.sdk_worker_main"
SECONDS_TO_PROVISION: Final = 60.0


def boot() -> None:
    """Become a worker, as the command of a PROCESS environment.

    --id=1-1 --provision_endpoint=127.0.0.1:34567

    The provision service gives all other addresses. A worker pool also passes them as options;
    Flink and Spark do not.
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
    environment = os.environ | {  # the variables that Beam's worker reads
        "WORKER_ID": given.id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    services = {"CONTROL": info.control_endpoint, "LOGGING": info.logging_endpoint}
    for name, endpoint in services.items():
        service = endpoints_pb2.ApiServiceDescriptor(url=endpoint.url)
        environment[f"{name}_API_SERVICE_DESCRIPTOR"] = text_format.MessageToString(service)
    # Not a child: the runner stops the process that it has started.
    os.execve(sys.executable, [sys.executable, "-m", SDK_WORKER], environment)
