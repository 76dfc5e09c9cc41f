# Training and fine-tuning on NVIDIA GPUs. From the root of a checkout:
#
#     docker build -f deploy/cuda.Dockerfile -t clozeline:cuda .
#     docker run --rm --gpus all --ipc host clozeline:cuda clozeline --help
#
# CUDA comes with torch's wheel, so the host needs only the driver and the NVIDIA container toolkit.
# Versions are those of requirements.lock. STORES are packages for URLs such as s3://.
FROM python:3.11.14-slim-bookworm AS build
ARG STORES="s3fs==2026.9.0"
RUN python -m venv /opt/clozeline
WORKDIR /src
COPY . .
# shellcheck disable=SC2086
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/clozeline/bin/pip install -c requirements.lock ".[baseline,onnx]" ${STORES} \
    && mv deploy /opt/clozeline/deploy

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.source="https://github.com/clozeline/clozeline" \
      org.opencontainers.image.licenses="Apache-2.0"
# tini passes SIGTERM on, and is there to be the first process, whose signals the kernel drops.
# torch.compile calls the compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc=4:12.2.* libc6-dev=2.36-* tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --no-create-home clozeline \
    && install --directory --owner=1000 /work
COPY --from=build /opt/clozeline /opt/clozeline
# A home that is writable where nothing else is (--read-only --tmpfs /tmp:exec).
ENV PATH=/opt/clozeline/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["tini", "--"]
CMD ["clozeline", "--help"]
