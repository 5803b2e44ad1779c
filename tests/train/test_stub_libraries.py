"""NVML and CUDA's driver as two stub libraries: what is read, and what a fork server touches."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
STUBS = {"cuda.c": "libcuda.so.1", "nvml.c": "libnvidia-ml.so.1"}
Ask = Callable[[str], tuple[Any, str]]

READINGS = """
import dataclasses, pynvml
from scaling.cluster.node import nvidia_gpus
from scaling.train.measure.power import NvmlMeter
meter = NvmlMeter(pynvml, "GPU-00000001-1111-2222-3333-444444444444")
said = {"energy_j": meter.energy_j(), "memory_used": meter.memory_used()} | meter.sample()
gpus, why = nvidia_gpus()
said |= {"gpus": [gpu.bus_id for gpu in gpus], "why": why}
"""
# As the fork server does: its environment, its imports, then a fork that counts.
FORKING = """
import os
from scaling.launch import fork_server
os.environ.update(fork_server._IMPORTING)
import scaling.train.__main__, scaling.train.program
import scaling.train.engines.deepspeed.engine, scaling.train.engines.torch.engine
before = open(os.environ["STUB_LOG"]).read()
child = os.fork()
if not child:
    fork_server._count_gpus()
said = [before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
"""
DRIVER = """
import ctypes
said = ctypes.CDLL("libcuda.so.1").cuInit(0)
"""


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Run code beside the stubs: what it calls `said`, and what the libraries logged."""
    for source, library in STUBS.items():
        path = Path(__file__).parent / "stubs" / source
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / library, path], check=True)
    log = tmp_path / "log"
    log.touch()
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(tmp_path), "STUB_LOG": str(log), "STUB_GPUS": "2",
    }  # fmt: skip

    def asked(code: str) -> tuple[Any, str]:
        printed = f"{code}\nimport json, sys\nsys.stdout.write('\\n' + json.dumps(said))"
        ran = subprocess.run(
            [sys.executable, "-c", printed],
            env=environment, cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1]), log.read_text()

    return asked


def test_a_card_at_its_power_cap_is_read_through_nvmls_library(ask: Ask) -> None:
    said, _ = ask(READINGS)
    assert said == {
        "energy_j": 7000.0, "power_w": 700.0, "clock_hz": 1.755e9, "throttled_share": 1.0,
        "slowdown_share": 0.0, "memory_used": 600 * 2**20,
        "gpus": ["0000:01:00.0", "0000:02:00.0"], "why": None,
    }  # fmt: skip


def test_a_fork_server_calls_no_driver_before_it_forks(ask: Ask) -> None:
    (before, _), _ = ask(FORKING)
    assert "cuda" not in before
    said, log = ask(DRIVER)  # a call would have been logged
    assert (said, log.splitlines()[-1].partition(" ")[2]) == (100, "cuda cuInit")
