# A worker of Beam's Flink, Spark and Dataflow runners. From the root of a checkout:
#
#     docker build -f deploy/beam.Dockerfile -t registry/clozeline-beam:0.1.0 .
#
# Submitter and workers need the same version of Beam and the same minor version of Python.
FROM apache/beam_python3.11_sdk:2.77.0
ARG STORES="s3fs==2026.9.0"
WORKDIR /src
COPY . .
# shellcheck disable=SC2086
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        -c requirements.lock ".[pipeline]" ${STORES}
WORKDIR /
