"""The benchmark of a step still runs. How fast is for a person to read, not for a test."""

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.conftest import PROJECT
from tests.points import tiny_point


@pytest.fixture
def benchmark_of_a_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    return importlib.import_module("training_step")


def turn(*step_times_s: float, **measured: Any) -> dict[str, Any]:
    drawn = {"energy_j": 100.0, "mean_power_w": 50.0, "clock_hz": 1e9, "throttled_share": 0.0}
    plain = {"outcome": "ok", "step_times_s": step_times_s, "peak_memory_bytes": 10, **drawn}
    return plain | measured


def test_both_take_turns_and_one_that_failed_is_not_asked_again(benchmark_of_a_step: Any) -> None:
    said: list[str] = []

    def answering(name: str, *outcomes: str) -> Any:
        left = iter(outcomes)
        return lambda: said.append(name) or {"outcome": next(left)}

    ours, theirs = answering("A", "ok", "ok", "ok"), answering("B", "ok", "oom")
    benchmark_of_a_step.in_turns(ours, theirs, turns=3)
    assert said == ["A", "B", "A", "B", "A"]


def test_rates_are_over_all_turns_and_of_each(benchmark_of_a_step: Any) -> None:
    """A step is 2 micro-batches of 2 sequences of 16 tokens."""
    point = tiny_point(
        micro_batch_size=2, gradient_accumulation_steps=2, seq_length=16, measured_steps=2
    )
    found = benchmark_of_a_step.compared(
        point,
        [turn(1.0, 1.0), turn(2.0, 2.0, peak_memory_bytes=12)],
        [turn(2.0, 2.0), turn(2.0, 2.0, energy_j=None)],
    )
    assert found["tokens_per_s_of_turns"] == [64, 32]
    assert found["tokens_per_s"] == 64 / 1.5
    assert (found["times_as_fast"], found["times_as_fast_of_turns"]) == (2 / 1.5, [2, 1])
    assert (found["peak_memory_bytes"], found["energy_j_of_a_step"]) == (12, 50)
    assert (found["mean_power_w"], found["clock_hz"], found["throttled_share"]) == (50, 1e9, 0)
    assert found["energy_j_of_a_step_of_transformers"] is None  # one turn could not say


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.slow
def test_an_out_of_memory_ends_a_side_and_not_the_grid(benchmark_of_a_step: Any) -> None:
    failed = benchmark_of_a_step.ranks_of(out_of_memory, tiny_point())
    assert failed["outcome"] == "oom"
    found = benchmark_of_a_step.compared(tiny_point(), [turn(1.0), failed], [turn(1.0), turn(1.0)])
    assert (found["outcome"], found["tokens_per_s"], found["mfu"]) == ("oom", None, None)
    assert "CUDA out of memory" in found["message"]
    assert found["tokens_per_s_of_transformers"] > 0
    assert found["times_as_fast"] is None


@pytest.mark.ranks
@pytest.mark.parametrize(
    "chosen",
    [
        ["--gradient-accumulation-steps", "2", "--zero-stage", "0", "--ranks", "2"],
        ["--model", "tiny_t5", "--attention", "math"],
    ],
)
def test_a_tiny_shape_is_timed_beside_transformers(chosen: list[str]) -> None:
    command = [sys.executable, "benchmarks/training_step.py", "--steps", "2", "--seq-length", "16"]
    command += ["--turns", "1", *chosen]
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
