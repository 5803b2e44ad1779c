"""Stopwatches for a training step. They drain the device before they read a clock."""

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Measures one drained step at a time."""

    name: str

    def start(self) -> None:
        """Start when all work queued before is done."""

    def stop(self) -> float:
        """Seconds since `start`, including all work queued since then."""


class HostStopwatch:
    """The host's monotonic clock; on a CPU nothing is queued, so there is nothing to drain."""

    name = "perf_counter"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = 0.0

    def start(self) -> None:
        """Read the clock."""
        self._started = self._clock()

    def stop(self) -> float:
        """Read it again."""
        return self._clock() - self._started


class CudaStopwatch:
    """CUDA events on a drained device.

    Kernels run asynchronously and engines use several streams, while an event waits for one stream
    only. So the whole device is drained before each event is recorded.
    """

    name = "cuda_event"

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        """Drain, then mark."""
        torch.cuda.synchronize()
        self._start.record()

    def stop(self) -> float:
        """Drain, mark, and read both marks."""
        torch.cuda.synchronize()
        self._stop.record()
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) / 1000  # from milliseconds
