"""The stopwatch of a training step."""

import time
from collections.abc import Callable

import torch


class Stopwatch:
    """Times work by the host's monotonic clock or, on a GPU, by CUDA events on a drained device.

    Kernels run asynchronously and engines use several streams, while an event waits for one stream
    only. So the whole device is drained before each event is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.name = "cuda_event" if on_gpu else "perf_counter"
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 if on_gpu else 0)]

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Do this work when all work queued before is done; seconds until all it queued is done."""
        if not self._marks:
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        start, stop = self._marks
        torch.cuda.synchronize()
        start.record()
        work()
        torch.cuda.synchronize()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000  # from milliseconds
