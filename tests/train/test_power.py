"""NVML stands in here as an object with its functions: its units and answers, no GPU."""

import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.train.measure.power import SAMPLED, NvmlMeter, PowerLog, Sample, power_use


class NvmlError(Exception):
    pass


def nvml(**answers: Any) -> types.SimpleNamespace:
    """A pynvml of one device: of a list each call gets the next, and an exception is raised."""
    usual: dict[str, Any] = {
        "nvmlDeviceGetTotalEnergyConsumption": 5_000, "nvmlDeviceGetPowerUsage": 300_000,
        "nvmlDeviceGetClockInfo": 1_980, "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=0),
    }  # fmt: skip

    def answering(answer: Any) -> Callable[..., Any]:
        def answered(*_: Any, **__: Any) -> Any:
            found = answer.pop(0) if isinstance(answer, list) else answer
            if isinstance(found, Exception):
                raise found
            return found

        return answered

    calls = {name: answering(answer) for name, answer in (usual | answers).items()}
    reasons = {"SwPowerCap": 4, "HwSlowdown": 8, "SwThermalSlowdown": 32,
               "HwThermalSlowdown": 64, "HwPowerBrakeSlowdown": 128}  # fmt: skip
    return types.SimpleNamespace(
        NVML_CLOCK_SM=1, nvmlMemory_v2=2, NVMLError=NvmlError, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid, **calls,
        **{f"nvmlClocksThrottleReason{name}": bit for name, bit in reasons.items()},
    )  # fmt: skip


def use_of(seconds: float, **answers: Any) -> dict[str, float | None]:
    """The columns of so many seconds."""
    clock = iter([10.0, 10.0 + seconds]).__next__
    log = PowerLog(NvmlMeter(nvml(**answers), "GPU-1"), clock=clock, every_s=3600)
    log.start()
    return log.stop()


@pytest.mark.parametrize(
    ("reasons", "throttled", "slowed_down"),
    [
        (0, False, False),
        (1, False, False),  # idle
        (2, False, False),  # a set clock
        (4, True, False),  # the power cap
        *((reason, True, True) for reason in (8, 32, 64, 128, 1 | 32, 4 | 64)),
    ],
)
def test_only_heat_and_hardware_count_as_a_slow_down(
    reasons: int, throttled: bool, slowed_down: bool
) -> None:
    told = {"nvmlDeviceGetCurrentClocksThrottleReasons": reasons}
    sample = NvmlMeter(nvml(**told), "GPU-1").sample()
    assert (sample["throttled_share"], sample["slowdown_share"]) == (throttled, slowed_down)


@pytest.mark.parametrize("error", [NvmlError("Not Supported"), NvmlError("GPU is lost")])
def test_no_error_of_nvml_costs_a_row_and_its_reason_is_logged_once(
    error: NvmlError, caplog: pytest.LogCaptureFixture
) -> None:
    calls = ("TotalEnergyConsumption", "PowerUsage", "ClockInfo", "MemoryInfo")
    calls += ("CurrentClocksThrottleReasons",)
    missing = {f"nvmlDeviceGet{call}": error for call in calls}
    meter = NvmlMeter(nvml(**missing), "GPU-1")
    for _ in range(2):
        assert (meter.energy_j(), meter.memory_used()) == (None, None)
        assert meter.sample() == dict.fromkeys(SAMPLED)
    assert len(caplog.messages) == 5
    assert set(use_of(2.0, **missing).values()) == {None}
    assert all(str(error) in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("counter", "energy_j", "mean_power_w"),
    [
        ([1_000_000, 1_500_000], 500.0, 200.0),
        ([1_000, NvmlError("Unknown Error")], 750.0, 300.0),  # the power readings are left
    ],
)
def test_energy_is_what_the_counter_rose_by(
    counter: list[Any], energy_j: float, mean_power_w: float
) -> None:
    found = use_of(2.5, nvmlDeviceGetTotalEnergyConsumption=counter)
    assert (found["energy_j"], found["mean_power_w"]) == (energy_j, mean_power_w)


def test_too_short_steps_have_no_energy(caplog: pytest.LogCaptureFixture) -> None:
    assert use_of(1.9) == {}
    assert caplog.messages == ["no energy or clocks: 1.9 s are too few for NVML's readings"]


def drawn(readings: list[tuple[float, float]]) -> list[tuple[float, Sample]]:
    """Samples of a device that tells its power only."""
    return [(at, dict.fromkeys(SAMPLED) | {"power_w": power}) for at, power in readings]


def test_without_a_counter_power_over_time_is_the_energy() -> None:
    """100 W that rise to 300 W in two seconds and stay for one: 400 J + 300 J."""
    samples = drawn([(0.0, 100.0), (2.0, 300.0), (3.0, 300.0)])
    assert power_use(samples, counted_j=None, seconds=3.0)["energy_j"] == pytest.approx(700.0)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1000)), min_size=1, max_size=20),
    st.floats(0.1, 100),
)
def test_mean_power_lies_between_the_readings(
    readings: list[tuple[float, float]], seconds: float
) -> None:
    found = power_use(drawn(sorted(readings)), counted_j=None, seconds=seconds)
    watts = [power for _, power in readings]
    mean = found["mean_power_w"]
    assert mean is not None
    assert min(watts) - 1e-6 <= mean <= max(watts) + 1e-6
    assert found["energy_j"] == pytest.approx(mean * seconds)
