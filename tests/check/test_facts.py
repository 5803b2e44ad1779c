"""Facts of a machine and its meter, and which of them are faults."""

import resource
from typing import Any

import pytest
import torch

from scaling.check.facts import energy_line, fact_lines, machine_facts
from scaling.cluster.hardware import GIB
from scaling.train.measure.power import SAMPLED, NvmlMeter, Sample
from tests.train.reference import CPU

RDMA = {"name": "mlx5_0", "kind": "rdma", "speed": "400 Gb/sec"}
GPUS = """index, uuid, clocks.current.sm [MHz], ...
0, GPU-1, 345, 1980, 0, 81559, Enabled, {}, Disabled
1, GPU-2, 345, 1980, 0, 81559, Enabled, {}, Disabled
"""
KNOWN = {
    "gpus": GPUS.format(0, 0),
    "gpu_name": "NVIDIA H100 80GB HBM3", "driver_version": "driver_version\n570.1",
    "cuda_version": "12.8", "nccl_version": "2.27.5", "torch_version": "2.13.0", "cpus": 96,
    "numa_nodes": 2, "nics": [RDMA], "near_cpus": {"0000:1b:00.0": [0, 1, 2, 3, 8]},
}  # fmt: skip


def states(found: dict[str, Any], foreign: int | None = 0) -> dict[str, str]:
    lines = fact_lines(found, torch.device("cuda", 0), foreign)
    return {line.name: line.state for line in lines}


def limits(monkeypatch: pytest.MonkeyPatch, *, memlock: int, files: int) -> None:
    told = {resource.RLIMIT_MEMLOCK: memlock, resource.RLIMIT_NOFILE: files}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (told[which], 2**20))


def test_a_node_that_may_pin_any_memory_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, memlock=resource.RLIM_INFINITY, files=2**20)
    assert set(states(KNOWN).values()) == {"pass"}


def test_limits_that_rdma_and_many_peers_need_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, memlock=2**26, files=1024)
    found = states(KNOWN)
    assert {name for name, state in found.items() if state == "fail"} == {
        "memory that may be pinned",
        "open files",
    }
    assert states(KNOWN | {"nics": []})["memory that may be pinned"] == "pass"


def test_a_page_tells_how_gpus_and_networks_are_wired() -> None:
    lines = {line.name: line.said for line in fact_lines(KNOWN, torch.device("cuda", 0), 0)}
    assert lines["cores near each GPU"] == "0000:1b:00.0: 0-3,8"
    assert lines["network devices"] == "mlx5_0 400 Gb/sec"
    assert lines["highest clock in MHz"] == "1980 of 2 GPUs; now 345, 345"
    assert lines["error correction (ECC)"] == "Enabled of 2 GPUs"


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("highest clock in MHz", "1980, 0", "1755, 0"),
        ("error correction (ECC)", "Enabled", "Disabled"),
    ],
)
def test_gpus_of_a_node_that_differ_fail(name: str, one: str, other: str) -> None:
    first, second = GPUS.format(0, 0).rstrip().rsplit("\n", 1)
    assert states(KNOWN)[name] == "pass"
    assert states(KNOWN | {"gpus": f"{first}\n{second.replace(one, other)}"})[name] == "fail"


@pytest.mark.parametrize(("foreign", "state"), [(0, "pass"), (GIB, "fail"), (None, "not here")])
def test_a_card_that_others_use_is_not_fit(foreign: int | None, state: str) -> None:
    assert states(KNOWN, foreign)["memory taken by others"] == state


def test_a_cpu_says_what_it_has_not() -> None:
    lines = fact_lines(machine_facts(CPU), CPU, None)
    found = {line.name: line.state for line in lines}
    assert found["torch version"] == "pass"
    assert found["memory taken by others"] == "not here"
    if torch.version.cuda is None:
        assert found["cuda version"] == "not here"


@pytest.mark.parametrize(
    ("gpus", "state"),
    [
        (GPUS.format(0, 0), "pass"),
        (GPUS.format(0, 3), "fail"),
        (GPUS.format("[N/A]", "[N/A]"), "not here"),
        (None, "not here"),
    ],
)
def test_memory_errors_of_any_gpu_fail(gpus: str | None, state: str) -> None:
    assert states(KNOWN | {"gpus": gpus})["uncorrected memory errors"] == state


class Device(NvmlMeter):
    """Draws 300 W, while its clock moves with its work; its counter counts `counted` of that."""

    def __init__(self, counted: float | None, power: float | None = 300.0) -> None:
        self.now, self.counted, self.power = 0.0, counted, power

    def clock(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += 0.01

    def energy_j(self) -> float | None:
        return None if self.counted is None else self.counted * 300.0 * self.now

    def sample(self) -> Sample:
        return dict.fromkeys(SAMPLED) | {"power_w": self.power}


@pytest.mark.parametrize(
    ("counted", "state"), [(1.0, "pass"), (1.04, "pass"), (0.9, "fail"), (2.0, "fail")]
)
def test_a_counter_is_held_to_power_over_time(counted: float, state: str) -> None:
    device = Device(counted)
    line = energy_line(device, device.work, clock=device.clock)
    assert line.state == state
    assert line.value == pytest.approx(abs(counted - 1))


@pytest.mark.parametrize("device", [Device(None), Device(1.0, power=None)])
def test_a_meter_that_cannot_say_is_not_here(device: Device) -> None:
    assert energy_line(device, device.work, clock=device.clock).state == "not here"


def test_a_cpu_has_no_meter() -> None:
    assert energy_line(None, lambda: None).state == "not here"
