"""The benchmark of a step still runs. How fast is for a person to read, not for a test."""

import json
import subprocess
import sys

import pytest

from tests.conftest import PROJECT


@pytest.mark.ranks
def test_a_tiny_shape_is_timed_beside_transformers() -> None:
    command = [sys.executable, "benchmarks/training_step.py", "--steps", "2", "--seq-length", "16"]
    command += ["--turns", "1", "--gradient-accumulation-steps", "2", "--zero-stage", "0"]
    said = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    found = json.loads(line)
    theirs = found["tokens_per_s_of_transformers"]
    assert theirs > 0
    assert found["peak_memory_bytes_of_transformers"] > 2**26
    ours = found["tokens_per_s"]
    assert ours > 0
    assert found["times_as_fast"] == pytest.approx(ours / theirs)
    assert found["peak_memory_bytes"] > 2**26
    assert found["mfu"] is None  # no peak is published for a share of a CPU
