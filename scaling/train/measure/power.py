"""Energy and power of the GPUs, as NVML counts them.

A rank reads its own device, and ranks of one job never share a device, so the sum over ranks counts
every device once. Values are None where NVML or the device cannot say; the rank's log has the
reason once.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

_log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 0.1  # NVML itself averages over about this long
# The counter is updated some ten times a second, so that a shorter time is off by more than 5 %.
SHORTEST_S = 2.0


Sample = dict[str, float | None]  # SAMPLED now; None where the device does not support it
SAMPLED = ("power_w", "clock_hz", "throttled_share", "slowdown_share")


def power_use(
    samples: Sequence[tuple[float, Sample]], *, counted_j: float | None, seconds: float
) -> dict[str, float | None]:
    """The row's columns of one device: energy by its counter or, without one, by power over time.

    Power is interpolated linearly between readings; before the first and after the last it is taken
    to be the mean. All other columns are means of the samples.

    Args:
        samples: the time of each in seconds, and its readings.
        counted_j: what the counter rose by, None where there is no counter.
        seconds: how long the time was.
    """
    known = {
        name: [(at, value) for at, sample in samples if (value := sample[name]) is not None]
        for name in SAMPLED
    }
    power_w = _mean_over_time(known["power_w"]) if counted_j is None else counted_j / seconds
    energy_j = counted_j
    if counted_j is None and power_w is not None:
        energy_j = power_w * seconds
    means = {
        name: float(np.mean([value for _, value in readings])) if readings else None
        for name, readings in known.items()
        if name != "power_w"
    }
    return {"energy_j": energy_j, "mean_power_w": power_w, **means}


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
        self, meter: "NvmlMeter", *, clock: Callable[[], float], every_s: float = SAMPLE_EVERY_S
    ) -> None:
        self._meter, self._clock, self._every_s = meter, clock, every_s
        self._samples: list[tuple[float, Sample]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began: float | None = None
        self._counted: float | None = None

    def start(self) -> None:
        """Read the counter and begin to sample."""
        self._counted, self._began = self._meter.energy_j(), self._clock()
        self._samples.append((self._began, self._meter.sample()))
        self._thread.start()

    def stop(self) -> dict[str, float | None]:
        """Read the counter again; the row's columns since `start`, none in less than SHORTEST_S.

        Raises:
            RuntimeError: the log was not started.
        """
        if self._began is None:
            raise RuntimeError("a power log is stopped that was never started")
        self._over.set()
        self._thread.join()
        after, now = self._meter.energy_j(), self._clock()
        self._samples.append((now, self._meter.sample()))
        seconds = now - self._began
        if seconds < SHORTEST_S:
            _log.warning("no energy or clocks: %.1f s are too few for NVML's readings", seconds)
            return {}
        counted = None if self._counted is None or after is None else after - self._counted
        return power_use(self._samples, counted_j=counted, seconds=seconds)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._samples.append((self._clock(), self._meter.sample()))


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

    def sample(self) -> Sample:
        """Power, the multiprocessors' clock, and 1.0 where something holds the clock down.

        A slow-down is by the hardware or heat. Throttled is also a device at its power cap, as a
        healthy one under full load. Idling and a set clock are neither.
        """
        nvml = self._nvml
        reasons = self._read("throttling", nvml.nvmlDeviceGetCurrentClocksThrottleReasons)

        def held(mask: int) -> float | None:
            return None if reasons is None else float(bool(int(reasons) & mask))

        return {
            "power_w": self._read("power", nvml.nvmlDeviceGetPowerUsage, 1e-3),
            "clock_hz": self._read(
                "clock", lambda d: nvml.nvmlDeviceGetClockInfo(d, nvml.NVML_CLOCK_SM), 1e6
            ),
            "throttled_share": held(self._slowdowns | nvml.nvmlClocksThrottleReasonSwPowerCap),
            "slowdown_share": held(self._slowdowns),
        }

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
