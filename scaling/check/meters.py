"""Check the stopwatch against the system's clock, and the energy counter against power readings."""

import time
from collections.abc import Callable

import torch

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.train.measure.power import NvmlMeter, Sample, power_use
from scaling.train.measure.timing import Stopwatch

_SECTION = "meters"
_CLOCK_S = 0.5
_ENERGY_S = 5.0  # a counter is updated some ten times a second
_SAMPLE_EVERY_S = 0.05
_BEFORE_S = 1.5  # since Hopper the power that a device reports is the mean of its last second
_CLOCK_TOLERANCE, _ENERGY_TOLERANCE = 0.01, 0.05  # ratios


def clock_line(device: torch.device, busy: Callable[[], object]) -> Line:
    """Compare the stopwatch of training with the system's clock over half a second of work."""
    watch, started = Stopwatch(device), 0.0

    def work() -> None:
        nonlocal started
        started = time.time()
        while time.time() - started < _CLOCK_S:
            busy()

    seconds = watch.seconds_of(work)
    name = f"{watch.name} against the system's clock"
    return clocks_agree(name, seconds, time.time() - started)


def clocks_agree(name: str, seconds: float, system_s: float) -> Line:
    """Compare two readings of the same span."""
    apart = abs(seconds / system_s - 1)
    return pass_or_fail(
        _SECTION, name, apart, passes=apart <= _CLOCK_TOLERANCE,
        said=f"apart, at most {_CLOCK_TOLERANCE:g}",
    )  # fmt: skip


def energy_line(
    meter: NvmlMeter | None,
    busy: Callable[[], object],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Line:
    """Compare the energy counter with power integrated over five seconds of work."""
    name = "energy counter against power over time"
    if meter is None:
        return not_here(_SECTION, name, "no device here has a meter that NVML knows")
    until = clock() + _BEFORE_S
    while clock() < until:
        busy()
    samples: list[tuple[float, Sample]] = []
    before, began = meter.energy_j(), clock()
    now = began
    while now - began < _ENERGY_S:
        samples.append((now, meter.sample()))
        until = now + _SAMPLE_EVERY_S
        while clock() < until:
            busy()
        now = clock()
    after = meter.energy_j()
    by_power = power_use(samples, counted_j=None, seconds=now - began)["energy_j"]
    if before is None or after is None or not by_power:
        return not_here(_SECTION, name, "the device has no counter, or does not say its power")
    apart = abs((after - before) / by_power - 1)
    return pass_or_fail(
        _SECTION, name, apart, passes=apart <= _ENERGY_TOLERANCE,
        said=f"apart, at most {_ENERGY_TOLERANCE:g}: {after - before:.4g} and {by_power:.4g} J",
    )  # fmt: skip
