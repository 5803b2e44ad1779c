"""Energy and power of the GPUs, as NVML counts them.

A rank reads the counter of its own device, and ranks of one job never share a device, so the sum
over ranks counts every device once. Null where NVML or the device cannot say; the rank's log has
the reason, once.
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


class Meter(Protocol):
    """One device's NVML, as far as it is needed. Each answers None where it is not supported."""

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded."""

    def power_w(self) -> float | None:
        """Watts now."""

    def clock_hz(self) -> float | None:
        """The multiprocessors' clock now."""

    def throttled(self) -> bool | None:
        """Whether heat or power holds the clock down now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerUse:
    """What one device drew over some time. Joules, watts, hertz; null for what is not known."""

    energy_j: float | None
    mean_power_w: float | None
    clock_hz: float | None
    throttled_share: float | None  # of the samples, in [0, 1]


UNMETERED = PowerUse(energy_j=None, mean_power_w=None, clock_hz=None, throttled_share=None)


@dataclass(slots=True)
class Samples:
    """Readings of power, clock and throttling with their times, in seconds on one clock."""

    power: list[tuple[float, float]] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)

    def read(self, meter: Meter, at: float) -> None:
        """Take one reading of each that the device supports."""
        if (power := meter.power_w()) is not None:
            self.power.append((at, power))
        if (clock := meter.clock_hz()) is not None:
            self.clock.append(clock)
        if (throttled := meter.throttled()) is not None:
            self.throttled.append(throttled)


def power_use(samples: Samples, *, counted_j: float | None, seconds: float) -> PowerUse:
    """Energy by the device's counter, or, where it has none, by its power over time.

    Power between two readings is taken as a straight line, and their mean stands for the ends.

    Args:
        samples: readings within the time.
        counted_j: what the counter rose by, None where there is none.
        seconds: how long it was.
    """
    power = _mean_over_time(samples.power)
    energy = counted_j if counted_j is not None else None if power is None else power * seconds
    return PowerUse(
        energy_j=energy,
        mean_power_w=power if counted_j is None else counted_j / seconds,
        clock_hz=float(np.mean(samples.clock)) if samples.clock else None,
        throttled_share=float(np.mean(samples.throttled)) if samples.throttled else None,
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
        """Read the counter again; what was drawn in between.

        Raises:
            RuntimeError: the log was not started.
        """
        if self._began is None:
            raise RuntimeError("a power log is stopped that was never started")
        self._over.set()
        self._thread.join()
        after, now = self._meter.energy_j(), self._clock()
        self._samples.read(self._meter, now)
        counted = None if self._counted is None or after is None else after - self._counted
        return power_use(self._samples, counted_j=counted, seconds=now - self._began)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._samples.read(self._meter, self._clock())


def meter_of(device: torch.device) -> "NvmlMeter | None":
    """The meter of a CUDA device; None on a CPU and where NVML does not know the device.

    It opens no context on the device, which would be memory taken.
    """
    if device.type != "cuda":
        return None
    import pynvml

    try:
        return NvmlMeter(pynvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (
        pynvml.NVMLError
    ) as error:  # another vendor's GPU, a slice of one, a container without NVML
        _log.warning("no energy, clocks or foreign memory: NVML: %s", error)
        return None


class NvmlMeter:
    """A device by NVML (nvidia-ml-py). No answer costs the point that is measured: it is None.

    Args:
        nvml: the module `pynvml`.
        uuid: of the device, `GPU-...`: an index would ignore CUDA_VISIBLE_DEVICES.

    Raises:
        nvml.NVMLError: NVML is not there, or does not know the device.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._device = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._slowdowns = (
            nvml.nvmlClocksThrottleReasonSwPowerCap
            | nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        )
        self._unanswered: set[str] = set()

    def energy_j(self) -> float | None:
        """NVML counts millijoules (Volta and later)."""
        return self._asked("energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3)

    def power_w(self) -> float | None:
        """NVML says milliwatts."""
        return self._asked("power", self._nvml.nvmlDeviceGetPowerUsage, 1e-3)

    def clock_hz(self) -> float | None:
        """NVML says megahertz."""
        sm = self._nvml.NVML_CLOCK_SM
        return self._asked("clock", lambda d: self._nvml.nvmlDeviceGetClockInfo(d, sm), 1e6)

    def throttled(self) -> bool | None:
        """Power cap, hardware slowdown or heat; not an idle clock or one that somebody has set."""
        ask = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        reasons = self._asked("throttling", ask)
        return None if reasons is None else bool(int(reasons) & self._slowdowns)

    def memory_used(self) -> int | None:
        """Bytes that processes hold. NVML's first version counts the driver's own reserve too."""
        nvml = self._nvml
        used = self._asked(
            "memory", lambda d: nvml.nvmlDeviceGetMemoryInfo(d, version=nvml.nvmlMemory_v2).used
        )
        return None if used is None else int(used)

    def _asked(self, what: str, ask: Callable[[Any], int], unit: float = 1) -> float | None:
        """What the device answers in our unit; None whatever the error.

        Not supported, not permitted, a driver that was replaced, a GPU that is lost: the training
        itself will say if it matters.
        """
        try:
            return ask(self._device) * unit
        except self._nvml.NVMLError as error:
            if what not in self._unanswered:
                self._unanswered.add(what)
                _log.warning("no %s is known: NVML: %s", what, error)
            return None
