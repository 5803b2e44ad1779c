"""The memory that a rank, others and libraries hold."""

import json
import subprocess
import sys

import pytest
import torch

from scaling.cluster.hardware import GIB
from scaling.train.failures import failure_of
from scaling.train.measure.peak_memory import foreign_memory, library_memory, note_foreign_memory
from tests.train.reference import CPU
from tests.warm import warm_rank

pytestmark = pytest.mark.slow

GROWN = """
import json, torch
from scaling.train.measure.peak_memory import peak_memory
cpu = torch.device("cpu")
before = peak_memory(cpu)
torch.ones(64 * 2**20)  # 256 MiB, given back at once
after = peak_memory(cpu)
print(json.dumps([before["peak_memory_bytes"], *after.values()]))
"""

REMEMBERED = """
import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.zero import stage_1_and_2
from scaling.train.engines.deepspeed import engine
deepspeed.init_distributed = lambda: None
get_accelerator().reset_peak_memory_stats = lambda *_: print("the peak is reset")
engine.join(0)
print("joined")
bf16_optimizer.see_memory_usage("begin bf16_optimizer", force=True)  # prints, and resets the peak
stage_1_and_2.empty_cache()
"""


def test_the_peak_of_a_cpu_rank_remembers_what_was_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", GROWN], capture_output=True, check=True, text=True)
    before, after, reserved, meter = json.loads(said.stdout)
    assert after - before >= 0.95 * 256 * 2**20
    assert (reserved, meter) == (None, "process_rss")


def test_an_engine_does_not_make_the_allocator_forget_its_peak() -> None:
    ran = subprocess.run([warm_rank(), "-c", REMEMBERED], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1:] == ["joined"], ran.stderr


def oom_with(foreign_bytes: int | None, error: Exception) -> str:
    with pytest.raises(type(error)) as caught, note_foreign_memory(foreign_bytes):
        raise error
    return failure_of(caught.value).message


def test_an_out_of_memory_names_what_others_had_taken() -> None:
    message = oom_with(30 * GIB, torch.OutOfMemoryError("CUDA out of memory."))
    assert message.endswith(
        "CUDA out of memory. (30.0 GiB of the GPU were taken by other processes before this rank "
        "began)"
    )


def test_another_failure_says_nothing_of_memory() -> None:
    assert "taken" not in oom_with(30 * GIB, ValueError("no"))


def test_a_cpu_has_no_memory_of_others_or_of_libraries() -> None:
    assert library_memory(CPU, 0) is None
    if not torch.cuda.is_available():
        assert foreign_memory(0) is None


def test_what_neither_the_allocator_nor_others_hold_is_the_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 of 80 GiB are free; torch has 50 and another process 7."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 50 * GIB)
    device = torch.device("cuda", 0)
    assert library_memory(device, 7 * GIB) == 3 * GIB
    assert library_memory(device, None) is None  # whose it is is not known
