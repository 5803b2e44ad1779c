"""Check the energy counter against power readings."""

import time
from collections.abc import Callable

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.train.measure.power import NvmlMeter, Sample, power_use

_SECTION = "meters"
_ENERGY_S = 5.0  # a counter is updated some ten times a second
_SAMPLE_EVERY_S = 0.05
_BEFORE_S = 1.5  # since Hopper the power that a device reports is the mean of its last second
_ENERGY_TOLERANCE = 0.05  # ratio


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
