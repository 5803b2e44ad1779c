"""NVML stands in here as an object with its functions: its units and answers, no GPU."""

import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.train.measure.power import SAMPLED, NvmlMeter, PowerLog, Sample, power_use


class NvmlError(Exception):
    pass


class NotSupported(NvmlError):
    pass


def nvml(**answers: Any) -> types.SimpleNamespace:
    """A pynvml of one device: an exception among the answers is raised."""

    def answering(answer: Any) -> Callable[..., Any]:
        def answered(*_: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer() if callable(answer) else answer

        return answered

    usual = {"energy": 5_000, "power": 300_000, "clock": 1_980, "reasons": 0, "memory": 0}
    answers = usual | answers
    return types.SimpleNamespace(
        NVML_CLOCK_SM=1,
        nvmlClocksThrottleReasonSwPowerCap=4,
        nvmlClocksThrottleReasonHwSlowdown=8,
        nvmlClocksThrottleReasonSwThermalSlowdown=32,
        nvmlClocksThrottleReasonHwThermalSlowdown=64,
        nvmlClocksThrottleReasonHwPowerBrakeSlowdown=128,
        nvmlMemory_v2=2,
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=answering(answers["energy"]),
        nvmlDeviceGetMemoryInfo=lambda _, version: types.SimpleNamespace(
            used=answering(answers["memory"])()
        ),
        nvmlDeviceGetPowerUsage=answering(answers["power"]),
        nvmlDeviceGetClockInfo=answering(answers["clock"]),
        nvmlDeviceGetCurrentClocksThrottleReasons=answering(answers["reasons"]),
    )


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
    meter = NvmlMeter(nvml(reasons=reasons), "GPU-1")
    sample = meter.sample()
    assert (sample["throttled_share"], sample["slowdown_share"]) == (throttled, slowed_down)


@pytest.mark.parametrize("error", [NotSupported("Not Supported"), NvmlError("GPU is lost")])
def test_no_error_of_nvml_costs_a_row_and_its_reason_is_logged_once(
    error: NvmlError, caplog: pytest.LogCaptureFixture
) -> None:
    missing = dict.fromkeys(("energy", "power", "clock", "reasons", "memory"), error)
    meter = NvmlMeter(nvml(**missing), "GPU-1")
    for _ in range(2):
        assert (meter.energy_j(), meter.memory_used()) == (None, None)
        assert meter.sample() == dict.fromkeys(SAMPLED)
    log = PowerLog(meter, clock=iter([0.0, 2.0]).__next__, every_s=3600)
    log.start()
    assert set(log.stop().values()) == {None}
    assert len(caplog.messages) == 5
    assert all(str(error) in message for message in caplog.messages)


def test_a_counter_that_fails_in_the_end_leaves_the_power_readings() -> None:
    answers = iter([1_000, NvmlError("Unknown Error")])

    def counter() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    log = PowerLog(NvmlMeter(nvml(energy=counter), "GPU-1"), clock=iter([0.0, 2.0]).__next__)
    log.start()
    found = log.stop()
    assert (found["energy_j"], found["mean_power_w"]) == (600.0, 300.0)


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


def test_the_log_subtracts_two_readings_of_the_counter() -> None:
    counter = itertools.count(1_000_000, 500_000)
    meter = NvmlMeter(nvml(energy=lambda: next(counter)), "GPU-1")
    clock = iter([10.0, 12.5])
    log = PowerLog(meter, clock=lambda: next(clock), every_s=3600)
    log.start()
    found = log.stop()
    assert (found["energy_j"], found["mean_power_w"]) == (500.0, 200.0)


def test_too_short_steps_have_no_energy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = itertools.count(1_000_000, 500_000)
    meter = NvmlMeter(nvml(energy=lambda: next(counter)), "GPU-1")
    log = PowerLog(meter, clock=iter([10.0, 11.9]).__next__, every_s=3600)
    log.start()
    assert log.stop() == {}
    assert caplog.messages == ["no energy or clocks: 1.9 s are too few for NVML's readings"]
