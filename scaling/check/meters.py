"""Whether the clocks agree, and the energy counter with the power that the device says it draws."""

import time
from collections.abc import Callable

import torch

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.train.measure.power import Meter, Samples, power_use
from scaling.train.measure.timing import CudaStopwatch, HostStopwatch, Stopwatch

_SECTION = "meters"
_CLOCK_S = 0.5
_ENERGY_S = 5.0  # a counter is renewed some ten times a second
_SAMPLE_EVERY_S = 0.05
_CLOCKS_DIFFER, _ENERGIES_DIFFER = 0.01, 0.05


def clock_line(device: torch.device, busy: Callable[[], object]) -> Line:
    """The stopwatch of training against the system's clock, over work of half a second."""
    watch: Stopwatch = CudaStopwatch() if device.type == "cuda" else HostStopwatch()
    name = f"{watch.name} against the system's clock"
    started, ended = time.time(), time.time()
    watch.start()
    started = time.time()
    while ended - started < _CLOCK_S:
        busy()
        ended = time.time()
    seconds = watch.stop()
    return clocks_agree(name, seconds, time.time() - started)


def clocks_agree(name: str, seconds: float, by_the_system: float) -> Line:
    """Both in seconds."""
    apart = abs(seconds / by_the_system - 1)
    return pass_or_fail(
        _SECTION, name, apart, passes=apart <= _CLOCKS_DIFFER,
        said=f"apart, at most {_CLOCKS_DIFFER:g}",
    )  # fmt: skip


def energy_line(
    meter: Meter | None, busy: Callable[[], object], *, clock: Callable[[], float] = time.monotonic
) -> Line:
    """The energy counter against power over time, over five seconds of work."""
    name = "energy counter against power over time"
    if meter is None:
        return not_here(_SECTION, name, "no device here has a meter that NVML knows")
    samples, before, began = Samples(), meter.energy_j(), clock()
    now = began
    while now - began < _ENERGY_S:
        samples.read(meter, now)
        until = now + _SAMPLE_EVERY_S
        while clock() < until:
            busy()
        now = clock()
    after = meter.energy_j()
    by_power = power_use(samples, counted_j=None, seconds=now - began).energy_j
    if before is None or after is None or not by_power:
        return not_here(_SECTION, name, "the device has no counter, or does not say its power")
    apart = abs((after - before) / by_power - 1)
    return pass_or_fail(
        _SECTION, name, apart, passes=apart <= _ENERGIES_DIFFER,
        said=f"apart, at most {_ENERGIES_DIFFER:g}: {after - before:.4g} and {by_power:.4g} J",
    )  # fmt: skip
