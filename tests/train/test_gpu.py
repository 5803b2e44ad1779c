"""Tests that need a GPU; skipped without one. Nothing here asserts a speed."""

import dataclasses
import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scaling.check.kernel_checks import SMALL, fused_kernels, kernel_lines
from scaling.check.lines import Line
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.local import rank_variables
from scaling.layout.axes import Precision
from scaling.layout.kernels import ATTENTION
from scaling.record.rank_files import RankFailure, RankFiles, RankResult, Stack
from scaling.study.point import Point
from scaling.train.device import catalogued_gpu
from scaling.train.engines.trainer import LEARNING_RATE
from scaling.train.measure.power import SHORTEST_S, PowerLog, meter_of
from tests.points import tiny_point
from tests.train.reference import CPU, reference_curve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
GPU = torch.device("cuda", 0)
KERNELS = [
    *(f"attention {name}" for name in ATTENTION),
    *(kernel.name for kernel in fused_kernels(SMALL, CPU)),
]


@functools.cache
def lines(precision: Precision) -> dict[str, Line]:
    return {line.name: line for line in kernel_lines(SMALL, precision, GPU)}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_gives_what_the_plain_code_gives(kernel: str, precision: Precision) -> None:
    line = lines(precision)[f"{kernel} {precision}"]
    if line.state == "not here":
        pytest.skip(line.said)
    assert line.state == "pass", line.said


@pytest.mark.parametrize("kernel", ["math", "flash2"])
def test_torchs_own_kernels_are_on_every_gpu(kernel: str) -> None:
    assert lines("bf16")[f"attention {kernel} bf16"].state == "pass"


def gpu_here() -> str:
    device = torch.cuda.get_device_properties(GPU)
    if name := catalogued_gpu(device.name, device.total_memory):
        return name
    pytest.skip(f"the catalogue has no {device.name}")


def trained(point: Point, folder: Path) -> dict[int, RankResult]:
    """The results of the ranks of this point, each started as a launcher starts it."""
    if torch.cuda.device_count() < point.layout.world_size:
        pytest.skip(f"{point.layout.world_size} GPUs are not here")
    path, files = folder / "point.json", RankFiles(folder)
    path.write_text(point.to_json(), encoding="utf-8")
    world_size = point.layout.world_size
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "scaling.train", str(path), str(folder)],
            env=rank_environment(point, os.environ) | rank_variables(rank, world_size),
        )
        for rank in range(world_size)
    ]
    assert [rank.wait() for rank in ranks] == [0] * world_size, files.read(RankFailure)
    return files.read(RankResult)


def gpu_point(precision: Precision, **layout: object) -> Point:
    point = tiny_point(precision=precision, attention="flash2", warmup_steps=2, **layout)
    return dataclasses.replace(point, gpu=gpu_here())


@pytest.mark.ranks
@pytest.mark.parametrize("layout", [{}, {"dp": 2, "zero_stage": 1}, {"tp": 2}], ids=str)
def test_ranks_on_nccl_train_what_plain_fp32_code_trains(
    tmp_path: Path, layout: dict[str, int]
) -> None:
    point = gpu_point("bf16", **layout)
    alone = tiny_point(warmup_steps=2)
    expected = reference_curve(alone, device=GPU, learning_rate=LEARNING_RATE).losses
    for result in trained(point, tmp_path).values():
        assert result.losses == pytest.approx(expected, abs=0.05)
        assert result.clock == "cuda_event"
        assert result.peak_memory_bytes > 0
    for rank in range(point.layout.world_size):
        stack = RankFiles(tmp_path).read(Stack)[rank]
        assert stack.nccl_version is not None
        assert stack.gpu_name == torch.cuda.get_device_name(rank)


@pytest.mark.ranks
def test_a_step_is_split_and_the_optimizer_is_a_part_of_it(tmp_path: Path) -> None:
    result = trained(gpu_point("bf16"), tmp_path)[0]
    assert result.spent is not None
    spent = {name: value for name, value in result.spent.items() if value is not None}
    assert spent["compute_s"] > 0
    step_s = spent["compute_s"] + spent["exposed_comm_s"] + spent["idle_s"]
    assert 0 < spent["optimizer_s"] < step_s


def test_nvml_counts_what_a_busy_gpu_draws() -> None:
    meter = meter_of(GPU)
    assert meter is not None
    matrix = torch.randn(4096, 4096, device=GPU, dtype=torch.float16)
    log = PowerLog(meter, clock=time.monotonic)
    log.start()
    until = time.monotonic() + SHORTEST_S
    while time.monotonic() < until:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize(GPU)
    drawn = log.stop()
    assert (drawn["energy_j"] or 0) > 0
    assert 10 < (drawn["mean_power_w"] or 0) < 3000
