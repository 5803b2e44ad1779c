"""Stopwatches for a training step. They drain the device before they read a clock."""

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Times work on a device, which it drains before and after."""

    name: str

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Do this work when all work queued before is done; seconds until all it queued is done."""


def stopwatch_of(device: torch.device) -> Stopwatch:
    """The stopwatch of this device."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


class HostStopwatch:
    """The host's monotonic clock; on a CPU nothing is queued, so there is nothing to drain."""

    name = "perf_counter"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def seconds_of(self, work: Callable[[], object]) -> float:
        """The difference of two readings."""
        started = self._clock()
        work()
        return self._clock() - started


class CudaStopwatch:
    """CUDA events on a drained device.

    Kernels run asynchronously and engines use several streams, while an event waits for one stream
    only. So the whole device is drained before each event is recorded.
    """

    name = "cuda_event"

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Drain and mark, work, drain and mark again."""
        torch.cuda.synchronize()
        self._start.record()
        work()
        torch.cuda.synchronize()
        self._stop.record()
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) / 1000  # from milliseconds
