"""Energy and power of the GPUs, as NVML counts them.

A rank reads its own device, and ranks of one job never share a device, so the sum over ranks counts
every device once. Values are None where NVML or the device cannot say; the rank's log has the
reason once.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

_log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 0.1  # NVML itself averages over about this long
# The counter is updated some ten times a second, so that a shorter time is off by more than 5 %.
SHORTEST_S = 2.0


class Meter(Protocol):
    """Readings of one device. Each is None where the device does not support it."""

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded."""

    def power_w(self) -> float | None:
        """Watts now."""

    def clock_hz(self) -> float | None:
        """The multiprocessors' clock now."""

    def throttled(self) -> bool | None:
        """Whether a power cap, heat or the hardware holds the clock down now."""

    def slowed_down(self) -> bool | None:
        """Whether heat or the hardware does, which a healthy device under full load does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerUse:
    """Energy and power of one device over some time. None where unknown."""

    energy_j: float | None
    mean_power_w: float | None
    clock_hz: float | None
    throttled_share: float | None  # ratio of samples, in [0, 1]
    slowdown_share: float | None  # the same without the power cap


UNMETERED = PowerUse(
    energy_j=None, mean_power_w=None, clock_hz=None, throttled_share=None, slowdown_share=None
)


@dataclass(slots=True)
class Samples:
    """Readings of power (seconds, watts), clock (hertz) and throttling."""

    power: list[tuple[float, float]] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    slowed_down: list[bool] = field(default_factory=list)

    def read(self, meter: Meter, at: float) -> None:
        """Take one reading of each that the device supports."""
        if (power := meter.power_w()) is not None:
            self.power.append((at, power))
        if (clock := meter.clock_hz()) is not None:
            self.clock.append(clock)
        if (throttled := meter.throttled()) is not None:
            self.throttled.append(throttled)
        if (slowed_down := meter.slowed_down()) is not None:
            self.slowed_down.append(slowed_down)


def power_use(samples: Samples, *, counted_j: float | None, seconds: float) -> PowerUse:
    """Energy by the device's counter or, where it has none, by its power over time.

    Power is interpolated linearly between readings; before the first and after the last it is taken
    to be the mean.

    Args:
        samples: readings within the time.
        counted_j: what the counter rose by, None where there is no counter.
        seconds: how long the time was.
    """
    mean_power_w = _mean_over_time(samples.power) if counted_j is None else counted_j / seconds
    energy_j = counted_j
    if counted_j is None and mean_power_w is not None:
        energy_j = mean_power_w * seconds
    return PowerUse(
        energy_j=energy_j,
        mean_power_w=mean_power_w,
        clock_hz=float(np.mean(samples.clock)) if samples.clock else None,
        throttled_share=float(np.mean(samples.throttled)) if samples.throttled else None,
        slowdown_share=float(np.mean(samples.slowed_down)) if samples.slowed_down else None,
    )


def _mean_over_time(readings: Sequence[tuple[float, float]]) -> float | None:
    if not readings:
        return None
    times, watts = (np.array(column) for column in zip(*readings, strict=True))
    if times[-1] <= times[0]:
        return float(watts.mean())
    return float(np.trapezoid(watts, times) / (times[-1] - times[0]))


class PowerLog:
    """Reads a meter from a thread of its own between `start` and `stop`."""

    def __init__(
        self, meter: Meter, *, clock: Callable[[], float], every_s: float = SAMPLE_EVERY_S
    ) -> None:
        self._meter, self._clock, self._every_s = meter, clock, every_s
        self._samples, self._over = Samples(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began: float | None = None
        self._counted: float | None = None

    def start(self) -> None:
        """Read the counter and begin to sample."""
        self._counted, self._began = self._meter.energy_j(), self._clock()
        self._samples.read(self._meter, self._began)
        self._thread.start()

    def stop(self) -> PowerUse:
        """Read the counter again and return the energy and power since `start`.

        Nothing is known of less than SHORTEST_S.

        Raises:
            RuntimeError: the log was not started.
        """
        if self._began is None:
            raise RuntimeError("a power log is stopped that was never started")
        self._over.set()
        self._thread.join()
        after, now = self._meter.energy_j(), self._clock()
        self._samples.read(self._meter, now)
        seconds = now - self._began
        if seconds < SHORTEST_S:
            _log.warning("no energy or clocks: %.1f s are too few for NVML's readings", seconds)
            return UNMETERED
        counted = None if self._counted is None or after is None else after - self._counted
        return power_use(self._samples, counted_j=counted, seconds=seconds)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._samples.read(self._meter, self._clock())


def meter_of(device: torch.device) -> "NvmlMeter | None":
    """The meter of a CUDA device; None on a CPU and where NVML does not know the device.

    It opens no context on the device, which would take memory.
    """
    if device.type != "cuda":
        return None
    import pynvml

    try:
        return NvmlMeter(pynvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    # another vendor's GPU, a slice of one, a container without NVML
    except pynvml.NVMLError as error:
        _log.warning("no energy, clocks or foreign memory: NVML: %s", error)
        return None


class NvmlMeter:
    """A device read by NVML (nvidia-ml-py). A failed reading is None and never ends the point.

    Args:
        nvml: the module `pynvml`.
        uuid: of the device, `GPU-...`; an index would ignore CUDA_VISIBLE_DEVICES.

    Raises:
        nvml.NVMLError: NVML is missing, or does not know the device.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._device = nvml.nvmlDeviceGetHandleByUUID(uuid)
        # the first is set with either of the next two
        self._slowdowns = (
            nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
            | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        )
        self._failed: set[str] = set()

    def energy_j(self) -> float | None:
        """NVML counts millijoules (Volta and later)."""
        return self._read("energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3)

    def power_w(self) -> float | None:
        """NVML reports milliwatts."""
        return self._read("power", self._nvml.nvmlDeviceGetPowerUsage, 1e-3)

    def clock_hz(self) -> float | None:
        """NVML reports megahertz."""
        sm = self._nvml.NVML_CLOCK_SM
        return self._read("clock", lambda d: self._nvml.nvmlDeviceGetClockInfo(d, sm), 1e6)

    def throttled(self) -> bool | None:
        """Whether a power cap, the hardware or heat slows the clock; not idling or a set clock."""
        return self._is_held_by(self._slowdowns | self._nvml.nvmlClocksThrottleReasonSwPowerCap)

    def slowed_down(self) -> bool | None:
        """Whether the hardware or heat does; the power cap is how fast a device may run."""
        return self._is_held_by(self._slowdowns)

    def _is_held_by(self, mask: int) -> bool | None:
        read = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        reasons = self._read("throttling", read)
        return None if reasons is None else bool(int(reasons) & mask)

    def memory_used(self) -> int | None:
        """Bytes that processes hold; version 2, as version 1 also counts the driver's reserve."""
        nvml = self._nvml
        used = self._read(
            "memory", lambda d: nvml.nvmlDeviceGetMemoryInfo(d, version=nvml.nvmlMemory_v2).used
        )
        return None if used is None else int(used)

    def _read(self, name: str, read: Callable[[Any], int], unit: float = 1) -> float | None:
        """A reading times `unit`; None on any error, which is logged once by name.

        The reading may be unsupported or forbidden, the driver replaced, the GPU lost. If it
        matters, training itself will fail.
        """
        try:
            return read(self._device) * unit
        except self._nvml.NVMLError as error:
            if name not in self._failed:
                self._failed.add(name)
                _log.warning("no %s is known: NVML: %s", name, error)
            return None
