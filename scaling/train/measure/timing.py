"""Seconds of a training step, read only around drained steps."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

Batch = TypeVar("Batch")


class Stopwatch(Protocol):
    """Measures one drained step at a time."""

    name: str

    def start(self) -> None:
        """Start once everything queued before is done."""

    def stop(self) -> float:
        """Seconds since `start`, everything queued since then included."""


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

    Kernels are launched asynchronously, and the engine has streams of its own: an event alone waits
    for one stream. So the whole device is drained before either event is recorded.
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
        return float(self._start.elapsed_time(self._stop)) / 1000  # it counts in ms


def time_steps(
    *,
    steps: int,
    prepare: Callable[[int], Batch],
    align: Callable[[], None],
    step: Callable[[Batch], None],
    after: Callable[[int], None],
    stopwatch: Stopwatch,
    first: int = 0,
    enough: Callable[[list[float]], bool] = lambda times: False,
) -> list[float]:
    """Seconds of each of at most `steps` steps from `first` on, warm-up included.

    What `prepare` (the data) and `after` (reading the loss) cost is no part of a step, as a data
    loader hides it. `align` lets the ranks start together, so that no rank's step includes another
    rank's preparation. After each step
    `enough` hears all times so far, and says whether no further one is needed.
    """
    times: list[float] = []
    for index in range(first, first + steps):
        batch = prepare(index)
        align()
        stopwatch.start()
        step(batch)
        times.append(stopwatch.stop())
        after(index)
        if enough(times):
            break
    return times
