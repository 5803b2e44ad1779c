"""The benchmark of a step still runs. How fast is for a person to read, not for a test."""

import json
import subprocess
import sys

import pytest

from tests.conftest import PROJECT


@pytest.mark.ranks
@pytest.mark.parametrize("chosen", [[], ["--model", "tiny_t5", "--attention", "math"]])
def test_a_tiny_shape_is_timed_beside_transformers(chosen: list[str]) -> None:
    command = [sys.executable, "benchmarks/training_step.py", "--steps", "2", "--seq-length", "16"]
    command += chosen
    said = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    found = json.loads(line)
    ours, theirs = found["tokens_per_s"], found["tokens_per_s_of_transformers"]
    assert ours > 0
    assert theirs > 0
    assert found["times_as_fast"] == pytest.approx(ours / theirs)
    assert found["mfu"] is None  # no peak is published for a share of a CPU
