"""Times of something short: several samples, each of as many runs as it takes to be measurable."""

import math
import time
from collections.abc import Callable

_SAMPLE_S = 0.002  # shorter ones measure the clock and the launch
_MOST_RUNS = 500  # of one sample
_FEWEST, _MOST = 5, 20  # samples


def samples_s(
    run: Callable[[], object],
    *,
    drain: Callable[[], object],
    budget_s: float,
    agree: Callable[[float], float] = float,
    align: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds of one run, as often as `budget_s` allows but 5 times at least and 20 at most.

    The first two runs are for what happens once (memory, connections, a kernel's choice) and are
    not counted.

    On a GPU `run` only queues; `drain` waits until the device has done it. Ranks that run together
    must run equally often: `agree` gives the largest of their values, `align` lets them start
    together.
    """
    run()
    drain()
    align()
    started = clock()
    run()
    drain()
    once = max(agree(clock() - started), 1e-7)
    runs = min(_MOST_RUNS, max(1, math.ceil(_SAMPLE_S / once)))
    count = min(_MOST, max(_FEWEST, int(budget_s / (runs * once))))
    samples = []
    align()
    for _ in range(count):
        started = clock()
        for _ in range(runs):
            run()
        drain()
        samples.append((clock() - started) / runs)
    return samples
