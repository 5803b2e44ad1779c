#!/bin/sh
# On the machine with the GPU, from the project's folder: sh benchmarks/gpu/run.sh [OUT.json]
# Installs the wheels of gpu-check/wheels.tar.xz beside the torch that is there, without network, and checks.
set -eu
out=${1:-check.json}
python=${PYTHON:-python3}
"$python" -m venv --system-site-packages .gpu-check-venv
.gpu-check-venv/bin/python -m tarfile -e gpu-check/wheels.tar.xz .gpu-check-venv/wheels
.gpu-check-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    .gpu-check-venv/wheels/*.whl
PYTHONPATH=. .gpu-check-venv/bin/python -m scaling check "$out"
