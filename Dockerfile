# For GPU nodes: what the lock says, torch with its CUDA libraries, and a C compiler for what torch.compile writes.
#   docker build -t training-scaling .
#   docker run --gpus all --ipc host --ulimit memlock=-1 -v "$PWD:/work" training-scaling check check.json
# BASE: with a digest where an image must be the same again: python:3.12-slim-bookworm@sha256:...
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc g++ libc6-dev numactl \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/scaling
COPY requirements.lock torch-cuda13.lock pyproject.toml hatch_build.py README.md LICENSE Snakefile ./
# TORCH: another build of the same release where the driver asks for one, e.g. torch==2.13.0+cu126
ARG TORCH=
ENV DS_BUILD_OPS=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip install --require-hashes --no-deps -r requirements.lock \
 && pip install ${TORCH:---require-hashes --no-deps -r torch-cuda13.lock}
COPY scaling scaling
COPY workflow workflow
COPY config config
COPY reports reports
RUN pip install --no-build-isolation --no-deps ./workflow/executor .

WORKDIR /work
ENTRYPOINT ["scaling"]
